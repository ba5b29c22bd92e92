"""The server's side of TLS: certificates and keys from files, which may be replaced while the broker serves."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("halfmq.tls")

_State = tuple[tuple[int, int, int], ...]


class CertificateFiles:
    """The files of a certificate chain, its key and, if clients need certificates, their authority (PEM).

    Each handshake checks whether they were replaced. Files that do not match, such as while they are being replaced,
    are ignored.
    """

    def __init__(self, chain: str, key: str, client_ca: str = "") -> None:
        """Takes the names of the files; an empty one if clients need no certificate."""
        self._chain, self._key, self._client_ca = Path(chain), Path(key), Path(client_ca) if client_ca else None
        self._seen: _State = ()

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of a port.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        try:
            self._seen = self._state()
            first = self._read()
        except OSError as error:
            raise ConfigurationError(
                f"The file {error.filename!r} cannot be read: {error.strerror}.", field="tls_certificate"
            ) from None
        replaced: Any = self._replaced  # Its type lacks None, which means unchanged.
        return grpc.dynamic_ssl_server_credentials(first, replaced, self._client_ca is not None)

    def _files(self) -> Sequence[Path]:
        return [self._chain, self._key, *([self._client_ca] if self._client_ca else [])]

    def _state(self) -> _State:
        return tuple((found.st_ino, found.st_mtime_ns, found.st_size) for found in (f.stat() for f in self._files()))

    def _read(self) -> grpc.ServerCertificateConfiguration:
        roots = self._client_ca.read_bytes() if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([(self._key.read_bytes(), self._chain.read_bytes())], roots)

    def _replaced(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates for new connections, if changed. gRPC calls this at each handshake."""
        state: _State = ()
        try:
            with contextlib.suppress(OSError):
                state = self._state()
            if state == self._seen:
                return None
            self._seen = state
            self._check()
            found = self._read()
        except (OSError, ValueError) as error:  # ssl's errors are OSErrors, too.
            logger.warning(
                "the TLS files %s cannot be used; new connections go on with those before: %s",
                ", ".join(repr(str(file)) for file in self._files()),
                error,
            )
            return None
        logger.info("new connections use the certificate %r as it is now", str(self._chain))
        return found

    def _check(self) -> None:
        """Raises OSError or ValueError if they do not match. gRPC would refuse all connections then."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # gRPC decides which keys are long enough.
        context.load_cert_chain(self._chain, self._key, password="")
        if self._client_ca:
            context.load_verify_locations(self._client_ca)
