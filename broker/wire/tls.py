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
    from collections.abc import Callable, Sequence

logger = logging.getLogger("halfmq.tls")

_ATTEMPTS = 10
_State = tuple[tuple[int, int, int], ...]
_Contents = tuple[bytes, ...]


class CertificateFiles:
    """The files of a certificate chain, its key and, if clients need certificates, their authority (PEM).

    Each handshake checks whether they were replaced. A chain and a key that do not match, such as while they are being
    replaced, are ignored; so is an authority that cannot be read. The one does not keep the other from being renewed.
    """

    def __init__(self, chain: str, key: str, client_ca: str = "") -> None:
        """Takes the names of the files; an empty one if clients need no certificate."""
        self._pair = Path(key), Path(chain)
        self._client_ca = (Path(client_ca),) if client_ca else ()
        self._seen: _State = ()
        self._used: tuple[_Contents, _Contents] = (), ()

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of a port.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        try:
            self._seen = self._state()
            self._used = _read(self._pair), _read(self._client_ca)
        except OSError as error:
            raise ConfigurationError(
                f"The file {error.filename!r} cannot be read: {error.strerror}.", field="tls_certificate"
            ) from None
        replaced: Any = self._replaced  # Its type lacks None, which means unchanged.
        return grpc.dynamic_ssl_server_credentials(_configuration(*self._used), replaced, bool(self._client_ca))

    def _state(self) -> _State:
        found = [file.stat() for file in (*self._pair, *self._client_ca)]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _replaced(self) -> grpc.ServerCertificateConfiguration | None:
        """The certificates for new connections, if changed. gRPC calls this at each handshake."""
        state: _State = ()
        with contextlib.suppress(OSError):
            state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        pair, client_ca = self._used
        used = self._renewed(self._pair, _check_pair, pair), self._renewed(self._client_ca, _check_authority, client_ca)
        if used == self._used:
            return None
        self._used = used
        logger.info("new connections use the certificate %r as it is now", str(self._pair[1]))
        return _configuration(*used)

    def _renewed(self, files: Sequence[Path], check: Callable[[Sequence[Path]], None], before: _Contents) -> _Contents:
        """What files hold now; what they held before if that cannot be used. gRPC would refuse all connections then."""
        try:
            # What is checked is what is used, also where files are replaced in between.
            for _ in range(_ATTEMPTS):
                found = _read(files)
                check(files)
                if _read(files) == found:
                    return found
        except (OSError, ValueError) as error:  # ssl's errors are OSErrors, too.
            names = ", ".join(repr(str(file)) for file in files)
            logger.warning("the TLS files %s cannot be used; new connections go on with those before: %s", names, error)
            return before
        self._seen = ()
        return before


def _read(files: Sequence[Path]) -> _Contents:
    return tuple(file.read_bytes() for file in files)


def _configuration(pair: _Contents, client_ca: _Contents) -> grpc.ServerCertificateConfiguration:
    key, chain = pair
    return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca[0] if client_ca else None)


def _check_pair(files: Sequence[Path]) -> None:
    """Raises OSError or ValueError if key and chain do not match."""
    key, chain = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # gRPC decides which keys are long enough.
    context.load_cert_chain(chain, key, password="")


def _check_authority(files: Sequence[Path]) -> None:
    """Raises OSError or ValueError if there is no certificate in a file."""
    for file in files:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
