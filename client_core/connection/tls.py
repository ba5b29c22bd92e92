"""Settings of an encrypted connection."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc

from client_core.errors import ConfigurationError

__all__ = ["TlsConfig"]


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How to verify a broker, and how the client identifies itself.

    Attributes:
        root_certificates: PEM of the authorities to trust; None: those that come with gRPC.
        client_certificate: PEM of the client's certificate chain, where the broker asks for one.
        client_key: PEM of its key; given together with the certificate or not at all.
        server_name: Name to expect in the broker's certificate, where it is not the host that is connected to.
    """

    root_certificates: bytes | None = None
    client_certificate: bytes | None = None
    client_key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Refuses half of a key pair, and what is no PEM.

        Raises:
            ConfigurationError: Only one of certificate and key is given, a PEM field is not bytes or has no PEM block,
                or the server's name is no text.
        """
        for name in ("root_certificates", "client_certificate", "client_key"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bytes):
                msg = f"{name} is the PEM content as bytes; read the file first: Path(...).read_bytes()"
                raise ConfigurationError(msg, field=name)
            if value is not None and b"-----BEGIN" not in value:
                msg = f"{name} has no PEM block (-----BEGIN ...-----); give the content of a PEM file"
                raise ConfigurationError(msg, field=name)
        if self.server_name is not None and (not isinstance(self.server_name, str) or not self.server_name):
            msg = f"server_name is the name in the broker's certificate, a text, not {self.server_name!r}"
            raise ConfigurationError(msg, field="server_name")
        if (self.client_certificate is None) != (self.client_key is None):
            missing = "client_certificate" if self.client_certificate is None else "client_key"
            msg = f"a client certificate and its key go together; {missing} is missing"
            raise ConfigurationError(msg, field=missing)

    def credentials(self) -> grpc.ChannelCredentials:
        """Creates gRPC's channel credentials."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.root_certificates,
            private_key=self.client_key,
            certificate_chain=self.client_certificate,
        )
