"""Certificates near their end: those of files that settings name, and those that brokers show."""

from __future__ import annotations

import re
import socket
import ssl
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from broker.ports.diagnosis import Bounds, Finding, Severity
from broker.storage.engine.connection import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from broker.config import BrokerConfig
    from client_core.connection import TlsConfig

NAME = "certificates"
WARNING_DAYS, CRITICAL_DAYS = 30, 7
_SECONDS = 5.0
_RENEWED = {
    "tls_certificate": "renew it and replace the file, with its key; brokers read it again by themselves",
    "tls_client_ca": "issue a new authority and clients' certificates of it; while clients change, the file holds both",
    "ssl_ca": "renew the authority of the database server's certificate, and replace the file; then restart brokers",
    "ssl_cert": "renew it and replace the file, with its key; then restart brokers",
}
_OF_AUTHORITIES = {"tls_client_ca", "ssl_ca"}
FEW = 5
"""Authorities in a file that are judged one by one; more are a bundle, such as the system's."""
_BLOCK = re.compile(rb"-----BEGIN (?:X509 )?CERTIFICATE-----.*?-----END (?:X509 )?CERTIFICATE-----", re.DOTALL)
_NOT_READABLE = (ValueError, x509.InvalidVersion)
_SHOWN = "renew it and replace the files that tls_certificate and tls_key of that broker name"


def of_settings(config: BrokerConfig, now: datetime) -> list[Finding]:
    """Those of the files that a broker's settings and its database URL name."""
    named = {name: getattr(config, name) for name in ("tls_certificate", "tls_client_ca")}
    query = parse_url(config.database).query
    named |= {name: str(query.get(name, "")) for name in ("ssl_ca", "ssl_cert")}
    findings: list[Finding] = []
    for setting, file in named.items():
        if file:
            findings += _of_file(setting, file, now)
    return findings


def of_endpoint(endpoint: str, tls: TlsConfig, now: datetime) -> list[Finding]:
    """The one that a broker shows, whether it is trusted or not; nothing if it cannot be reached."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Whether it is trusted, the call finds out.
    context.set_alpn_protocols(["h2"])
    host, _, port = endpoint.rpartition(":")
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=tls.server_name or host.strip("[]")) as encrypted,
        ):
            shown = encrypted.getpeercert(binary_form=True)
    except (OSError, ValueError):  # An address without a port is that of a socket's file.
        return []
    if shown is None:
        return []
    what = f"the certificate that {endpoint} shows"
    try:
        return [_judged(what, _loaded(x509.load_der_x509_certificate, shown), _SHOWN, now)]
    except _NOT_READABLE as error:
        return [Finding(NAME, Severity.CRITICAL, f"{what} cannot be read: {error}", _SHOWN)]


def _of_file(setting: str, file: str, now: datetime) -> Iterator[Finding]:
    try:
        found = _certificates(Path(file).read_bytes())
        if setting in _OF_AUTHORITIES and len(found) > FEW:
            yield _of_bundle(f"{setting}: of the {len(found)} certificates in {file!r} the", found, setting, now)
        else:
            for each in found:
                yield _judged(f"{setting}: the certificate in {file!r}", each, _RENEWED[setting], now)
    except (OSError, *_NOT_READABLE) as error:
        what = error.strerror if isinstance(error, OSError) else "it holds no certificate (PEM) that can be read"
        text = f"{setting}: the file {file!r} cannot be read: {what}"
        yield Finding(NAME, Severity.CRITICAL, text, f"correct {setting}, or the file's permissions")


def _of_bundle(what: str, found: Sequence[x509.Certificate], setting: str, now: datetime) -> Finding:
    """The one that is valid for longest: some of a system's authorities always end soon, and any may be in use."""
    valid = [each for each in found if each.not_valid_before_utc <= now] or found
    last = max(valid, key=lambda each: each.not_valid_after_utc)
    return _judged(f"{what} last to end", last, _RENEWED[setting], now)


def _certificates(content: bytes) -> list[x509.Certificate]:
    """Those of a file; in a bundle, those that can be read.

    Raises:
        ValueError: there is none, or one of few cannot be read.
        x509.InvalidVersion: as above.
    """
    blocks = _BLOCK.findall(content)
    found = []
    for block in blocks:
        try:
            found.append(_loaded(x509.load_pem_x509_certificate, block))
        except _NOT_READABLE:
            if len(blocks) <= FEW:
                raise
    if not found:
        raise ValueError("there is no certificate")
    return found


def _loaded(load: Callable[[bytes], x509.Certificate], content: bytes) -> x509.Certificate:
    """Without the warnings about certificates that are not as they should be, which would be shown to the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return load(content)


def _judged(what: str, certificate: x509.Certificate, remedy: str, now: datetime) -> Finding:
    ends = certificate.not_valid_after_utc
    left = ends - now
    severity = _severity(left)
    begins = certificate.not_valid_before_utc
    named = f"{what}, of {_name_of(certificate)},"
    if begins > now:
        severity, text = Severity.CRITICAL, f"{named} is not valid before {begins:%Y-%m-%d %H:%M} UTC"
        remedy = "correct this machine's clock, or issue the certificate anew"
    elif left < timedelta(0):
        text = f"{named} ended {-left.days} days ago, on {ends:%Y-%m-%d}"
    else:
        text = f"{named} ends in {left.days} days, on {ends:%Y-%m-%d}"
    return Finding(NAME, severity, text, remedy if severity else "")


def _severity(left: timedelta) -> Severity:
    # The bounds are upper ones of a figure that grows.
    return Bounds(-WARNING_DAYS, -CRITICAL_DAYS).severity(-left / timedelta(days=1))


def _name_of(certificate: x509.Certificate) -> str:
    names: Iterable[x509.NameAttribute[str | bytes]] = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return next((str(each.value) for each in names), "") or certificate.subject.rfc4514_string() or "no name"


def now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)
