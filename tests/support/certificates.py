"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Authority:
    """Signs certificates for 127.0.0.1."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    name: str = "test authority"

    @classmethod
    def make(cls, name: str = "test authority", *, days: float = 1) -> Authority:
        """A new one that nobody knows; those that are trusted together need different names."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls(_certificate(name, key, name, key, authority=True, days=days), key, name)

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *, days: float = 1) -> tuple[bytes, bytes]:
        """A key and its certificate chain, which ends in so many days."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, self.name, self.key, authority=False, days=days)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private, certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
    days: float,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1 + abs(days)))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(addresses, critical=False)
        .sign(signer, hashes.SHA256())
    )
