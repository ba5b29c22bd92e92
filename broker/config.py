"""The broker's settings: their names, defaults and bounds. Durations are seconds."""

from __future__ import annotations

import math
import os
import re
import socket
from dataclasses import dataclass, field

from broker.domain.cell import parse_cells
from broker.domain.check_policy import CheckPolicy
from broker.domain.limits import Limits
from broker.errors import ConfigurationError

DEFAULT_DATABASE = "sqlite:///halfmq.db"
SIGNATURE_WINDOW = 54_000.0
"""15 hours: time zones are up to 14 hours off, and some clients write their local time as if it was UTC. A signature
that was seen counts for 30 hours at most."""

BOUNDS = {
    "first_check": (0, 24 * 3600),
    "check_interval": (0.01, 24 * 3600),
    "lease": (0.1, 12 * 3600),
    "retention_hours": (1e-7, 100 * 366 * 24),
    "max_delay_hours": (0, 366 * 24),
    "history_hours": (0, 100 * 366 * 24),
    "sink_hours": (1e-7, 100 * 366 * 24),
    "max_calls": (1, 1_000_000),
    "max_streams": (1, 1_000_000),
    "max_request_bytes": (64 * 1024 * 1024, 1 << 40),
    "client_calls": (0, 1_000_000),
    "client_streams": (0, 1_000_000),
    "client_request_bytes": (0, 1 << 40),
    "client_connections": (0, 1_000_000),
    "client_groups": (0, 1_000_000),
    "drain": (0, 3600),
    "workers": (1, 64),
    "answer_timeout": (0.1, 3600),
    "reconnect_timeout": (0.01, 3600),
    "jwt_clock_skew": (0, 3600),
    "audit_days": (1, 100 * 366),
    "rocketmq_signature_window": (0, 86_400),
    "rocketmq_min_invisible": (0.1, 3600),
    "metrics_interval": (0.1, 3600),
    "metrics_names": (1, 100_000),
}
"""Least and largest values of settings."""

FORMS = {
    "table_prefix": ("([a-z][a-z0-9_]{,29})?", "has up to 30 lower-case letters, digits and _, a letter first"),
    "log_format": ("text|json", "is text or json"),
    "log_level": ("debug|info|warning|error", "is debug, info, warning or error"),
}
"""Patterns of text settings, and their descriptions."""

NEEDS = {
    "tls_client_ca": ("tls_certificate", "tls_key"),
    "tls_optional": ("tls_certificate", "tls_key"),
    "access_tokens": ("access",),
    "access_certificates": ("access", "tls_client_ca"),
    "access_without_tls": ("access",),
    "jwt_keys": ("access", "jwt_audience"),
    "jwt_audience": ("jwt_keys",),
    "jwt_issuer": ("jwt_keys",),
    "console_hosts": ("console_listen",),
    "rocketmq_endpoints": ("rocketmq",),
    "rocketmq_keys": ("rocketmq",),
    "rocketmq_signature_window": ("rocketmq_keys",),
}
"""Settings that require others."""


@dataclass(frozen=True)
class BrokerConfig:
    """Everything that can be set; the text behind each name is what `halfmq serve --help` shows.

    Attributes:
        database: URL of the database: mysql://user:password@host:3306/name, or sqlite:///file. On a command line
            every user of the machine can read its password: see `load`.
        cells: further databases to place topics in: name=URL, with spaces between them; the same for all brokers.
        table_prefix: what the names of all tables begin with, such as halfmq_, where others share the database.
        listen: address and port to serve on; port 0 takes a free one.
        admin_listen: another address and port, for AdminService and reflection alone; empty: they are on listen, too.
        broker_id: this broker's name in logs and histories.
        workers: processes that share the address, each of them a broker; what one is bounded to, each of them is.
        first_check: seconds from prepare to the first check.
        check_interval: seconds between checks.
        max_checks: checks before a transaction is parked.
        lease: seconds a delivery belongs to its consumer.
        queue_count: queues of a topic that names no number.
        retention_hours: hours that messages and op records are kept by default.
        max_delay_hours: longest time that a message may wait before its delivery.
        history_hours: hours that deliveries and acks are kept for the timeline of messages; 0: they are not recorded.
        sink_hours: hours that half messages of a sink wait for the commit of their epoch.
        auto_create: make unknown topics and consumer groups when they are first named.
        auto_create_groups: make unknown consumer groups; None: with auto_create, and with rocketmq, as its proxies do.
        max_body_bytes: largest body of a message.
        max_calls: calls in flight at a time; more are refused with RESOURCE_EXHAUSTED and a retry delay.
        max_streams: streams in flight at a time (consumers, check streams, pulls); more are refused likewise.
        max_request_bytes: bytes of all requests in flight; each that arrives slowly counts as the largest; more are
            refused likewise.
        client_calls, client_streams, client_request_bytes: the same of one client; 0: three quarters of the above. A
            client is whoever is known by one name; without access it is one connection.
        client_connections: of one name, or without access of one address, that are busy; 0: any number.
        client_groups: how many groups one name may make in an hour by naming them; 0: any number.
        drain: seconds that calls may take to end after SIGTERM.
        answer_timeout: seconds to wait for the database's answer to a statement.
        reconnect_timeout: seconds to try to reach a lost database before calls fail.
        allow_unsafe_database: start although the database's settings can lose acknowledged commits.
        migrate: create or upgrade the tables at the start.
        tls_certificate: file with the server's certificate chain (PEM); needs tls_key.
        tls_key: file with the server's private key (PEM).
        tls_client_ca: file with the CA of client certificates; clients must then show one.
        tls_optional: serve clients without TLS, too, on the same port; what they send can be read on its way.
        access: let in only clients that are known, and only to what rules allow them.
        access_tokens: file with the hashes of bearer tokens (TOML), as `halfmq access token` prints them.
        access_certificates: the subject (CN) of a client's certificate is its name; needs tls_client_ca.
        access_without_tls: accept tokens also from connections without TLS, where others can read them.
        jwt_keys: public keys (JWKS) of those who issue JWTs: a file, or an https URL; needs jwt_audience.
        jwt_audience: what the claim aud of JWTs has to name.
        jwt_issuer: what their claim iss has to be; empty: any.
        jwt_clock_skew: seconds that this machine's clock may differ from the issuer's.
        audit_days: days that records of who did what are kept.
        rocketmq: also speak the protocol of RocketMQ's official clients; needs the extra [rocketmq].
        rocketmq_endpoints: addresses to announce to them (host:port, with commas between); empty: those that they use.
        rocketmq_keys: file with lines access-key:secret-key; RocketMQ's clients must then sign their calls. It is read
            again when it was replaced.
        rocketmq_signature_window: seconds that the time of a signature may differ from this machine's; 0: any time is
            accepted. None: 54000 (15 h) with access, otherwise 0.
        rocketmq_min_invisible: shortest invisible duration (seconds) that they may receive messages for.
        console_listen: address and port for operators' web pages; empty: there are none; needs the extra [console].
        console_hosts: names under which these are asked for, with commas between, beside addresses and the machine's
            name; without access, other names are refused.
        traces: send traces of messages by OTLP to where OTEL_EXPORTER_OTLP_ENDPOINT says; needs the extra
            [opentelemetry].
        metrics_listen: address and port for metrics (GET /metrics), or unix: and a file; empty: there are none.
        metrics_interval: seconds between two looks at what the database holds, for metrics.
        metrics_names: topics and groups that are told apart in each metric; the others are under the name "other".
        log_format: text or json.
        log_level: debug, info, warning or error.
    """

    database: str = field(default=DEFAULT_DATABASE, repr=False)
    cells: str = field(default="", repr=False)
    table_prefix: str = ""
    listen: str = "127.0.0.1:8085"
    admin_listen: str = ""
    broker_id: str = ""
    workers: int = 1
    first_check: float = 6.0
    check_interval: float = 30.0
    max_checks: int = 15
    lease: float = 30.0
    queue_count: int = 4
    retention_hours: float = 72.0
    max_delay_hours: float = 24.0
    history_hours: float = 24.0
    sink_hours: float = 24.0
    auto_create: bool = False
    auto_create_groups: bool | None = None
    max_body_bytes: int = 4 * 1024 * 1024
    max_calls: int = 5000
    max_streams: int = 20_000
    max_request_bytes: int = 512 * 1024 * 1024
    client_calls: int = 0
    client_streams: int = 0
    client_request_bytes: int = 0
    client_connections: int = 0
    client_groups: int = 1000
    drain: float = 10.0
    answer_timeout: float = 30.0
    reconnect_timeout: float = 10.0
    allow_unsafe_database: bool = False
    migrate: bool = True
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_optional: bool = False
    access: bool = False
    access_tokens: str = ""
    access_certificates: bool = False
    access_without_tls: bool = False
    jwt_keys: str = ""
    jwt_audience: str = ""
    jwt_issuer: str = ""
    jwt_clock_skew: float = 30.0
    audit_days: float = 366.0
    rocketmq: bool = False
    rocketmq_endpoints: str = ""
    rocketmq_keys: str = ""
    rocketmq_signature_window: float | None = None
    rocketmq_min_invisible: float = 10.0
    console_listen: str = ""
    console_hosts: str = ""
    traces: bool = False
    metrics_listen: str = ""
    metrics_interval: float = 15.0
    metrics_names: int = 1000
    log_format: str = "text"
    log_level: str = "info"

    def __post_init__(self) -> None:
        """Refuses invalid settings, by name."""
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigurationError(f"{name} must be a finite number.", field=name)
        if not 1 <= self.queue_count <= 1024:
            raise ConfigurationError("queue_count must be between 1 and 1024.", field="queue_count")
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ConfigurationError(f"{name} must be between {least:g} and {most:g}.", field=name)
        self._check_tls()
        for name, needed in NEEDS.items():
            if getattr(self, name) and not all(getattr(self, other) for other in needed):
                raise ConfigurationError(f"{name} needs {' and '.join(needed)}.", field=name)
        for name, (form, said) in FORMS.items():
            if not re.fullmatch(form, getattr(self, name)):
                raise ConfigurationError(f"{name} {said}.", field=name)
        self._check_access()
        self._check_cells()
        self._check_addresses()
        self.check_policy()
        try:
            self.limits()
        except ConfigurationError:
            raise ConfigurationError(
                "max_body_bytes must be between 1 and 15728640 (15 MiB).", field="max_body_bytes"
            ) from None

    def _check_cells(self) -> None:
        if self.database in self.cell_urls.values() or len(set(self.cell_urls.values())) < len(self.cell_urls):
            raise ConfigurationError("cells names a database twice, or the one of `database`.", field="cells")

    def _check_addresses(self) -> None:
        for name in ("listen", *(("admin_listen",) if self.admin_listen else ())):
            self._check_address(name)
        if self.metrics_listen and not re.fullmatch("unix:.+", self.metrics_listen):
            self._check_address("metrics_listen")
            if self.metrics_listen in {self.listen, self.admin_listen} and not self.metrics_listen.endswith(":0"):
                raise ConfigurationError(
                    "metrics_listen is an address of its own, or left out.", field="metrics_listen"
                )
        if self.console_listen:
            self._check_address("console_listen")
            others = {self.listen, self.admin_listen, self.metrics_listen}
            if self.console_listen in others and not self.console_listen.endswith(":0"):
                raise ConfigurationError(
                    "console_listen is an address of its own, or left out.", field="console_listen"
                )
        if self.admin_listen == self.listen and not self.listen.endswith(":0"):
            raise ConfigurationError("admin_listen is another address than listen, or left out.", field="admin_listen")

    def _check_address(self, name: str) -> None:
        host, _, port = getattr(self, name).rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ConfigurationError(f"{name} is host:port, such as 0.0.0.0:8085; a port is 65535 at most.", field=name)

    def _check_tls(self) -> None:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigurationError("tls_certificate and tls_key go together.", field="tls_key")
        if self.tls_optional and self.tls_client_ca:
            raise ConfigurationError(
                "tls_optional lets in clients without a certificate, and tls_client_ca none; leave one of them out.",
                field="tls_optional",
            )

    def _check_access(self) -> None:
        if not self.access:
            return
        if not (self.access_tokens or self.access_certificates or self.jwt_keys or self.rocketmq_keys):
            raise ConfigurationError(
                "access without access_tokens, access_certificates, jwt_keys or rocketmq_keys lets nobody in; set one.",
                field="access",
            )
        if self.rocketmq and not self.rocketmq_keys:
            raise ConfigurationError(
                "access needs rocketmq_keys where rocketmq is on: the access key is the client's name.", field="access"
            )

    @property
    def cell_urls(self) -> dict[str, str]:
        """The URLs of further databases, by the names of the cells."""
        return parse_cells(self.cells)

    @property
    def name(self) -> str:
        """The broker's name; by default host and process number."""
        return self.broker_id or f"{socket.gethostname()}-{os.getpid()}"

    @property
    def creates_groups(self) -> bool:
        """Whether unknown consumer groups are created when first named."""
        if self.auto_create_groups is None:
            return self.auto_create or self.rocketmq
        return self.auto_create_groups

    @property
    def signature_window(self) -> float:
        """Seconds that the time of a signature of RocketMQ's clients may differ; 0: any time."""
        if self.rocketmq_signature_window is None:
            return SIGNATURE_WINDOW if self.access else 0.0
        return self.rocketmq_signature_window

    def check_policy(self) -> CheckPolicy:
        """The times of the check-back."""
        return CheckPolicy(
            first_check=int(self.first_check * 1e6),
            interval=int(self.check_interval * 1e6),
            max_checks=self.max_checks,
        )

    def limits(self) -> Limits:
        """The bounds of messages and requests."""
        return Limits(max_body=self.max_body_bytes, max_delay=int(self.max_delay_hours * 3600e6))

    @property
    def retention(self) -> int:
        """Microseconds that messages and op records are kept by default."""
        return int(self.retention_hours * 3600e6)
