"""`halfmq doctor`: arguments, certificates, what brokers answer, and the report."""

from __future__ import annotations

import re
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from broker.config import BrokerConfig
from broker.ports.diagnosis import Bounds, DiagnosisSettings, Finding, Severity
from client_core.connection import TlsConfig
from halfmq_cli.commands import app
from halfmq_cli.doctor import certificates, endpoints, report
from halfmq_cli.doctor.command import ALL_CHECKS, settings_of
from support.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, WARNING, CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense"], "No such option"),
        (["--only", "nonsense"], "only: There is no check 'nonsense'; there are: settings, servers, rights, "),
        (["--skip", "nonsense"], "skip: There is no check 'nonsense'"),
        (["--only", "clock", "--skip", "clock"], "No check is left"),
        (["--only", "endpoints"], "The check endpoints needs an --endpoint"),
        (["--endpoint", "nonsense"], "endpoint"),
        (["--tls-ca", "/no/such/file"], "tls_ca: The file '/no/such/file' cannot be read"),
        (["--tls-ca", "pyproject.toml"], "root_certificates has no PEM block"),
        (["--config", "/no/such/file"], "config: The file '/no/such/file' cannot be read"),
        (["--database", "nonsense"], "database: The database URL cannot be read"),
    ],
)
def test_wrong_arguments_are_status_3(arguments: list[str], words: str) -> None:
    """2 would tell monitoring that something is critical."""
    ran = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})
    assert ran.exit_code == 3
    assert words in ran.output


def test_looking_at_nothing_is_status_3(tmp_path: Path) -> None:
    """SQLite knows no rights: nothing was found, but nothing was looked at either."""
    database = f"sqlite:///{tmp_path}/try.db"
    assert CliRunner().invoke(app, ["migrate", "--database", database]).exit_code == 0
    ran = CliRunner().invoke(app, ["doctor", "--only", "rights", "--database", database])
    assert ran.exit_code == 3
    assert "None of these checks is for this database" in ran.output


def test_other_commands_keep_their_status_for_wrong_arguments() -> None:
    assert CliRunner().invoke(app, ["migrate", "--nonsense"]).exit_code == 2


def test_a_fault_of_the_command_itself_is_status_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("halfmq_cli.doctor.command.certificates.of_settings", lambda *_: 1 // 0)
    database = f"sqlite:///{tmp_path}/try.db"
    assert CliRunner().invoke(app, ["migrate", "--database", database]).exit_code == 0
    only = [f"--only={name}" for name in ("clock", "scheduled", "certificates")]
    ran = CliRunner().invoke(app, ["doctor", *only, "--database", database])
    assert ran.exit_code == 3
    assert "halfmq: a fault of the command itself: ZeroDivisionError" in ran.stderr
    # What was found before it is not lost.
    assert ran.stdout == "2 of 2 checks passed, the others could not be done\n"


def test_what_brokers_keep_is_taken_from_their_settings() -> None:
    config = BrokerConfig(
        retention_hours=1,
        history_hours=2,
        sink_hours=3,
        audit_days=4,
        check_interval=5,
        max_body_bytes=6,
        migrate=False,
    )
    hour = 3_600_000_000
    made = settings_of(config)
    assert (made.keep_ops, made.keep_events, made.keep_leftovers, made.keep_audit) == (
        hour,
        2 * hour,
        3 * hour,
        96 * hour,
    )
    assert (made.policy.interval, made.largest_body, made.migrates) == (5_000_000, 6, False)
    assert made.behind == Bounds(300_000_000, 24 * hour)
    # The defaults of both are the same.
    assert settings_of(BrokerConfig()) == DiagnosisSettings()


@pytest.mark.parametrize("name", [each.name for each in fields(DiagnosisSettings)])
def test_every_bound_begins_as_a_warning(name: str) -> None:
    bounds = getattr(DiagnosisSettings(), name)
    if isinstance(bounds, Bounds):
        assert bounds.warning < bounds.critical
        assert bounds.severity(bounds.warning) is WARNING
        assert bounds.severity(bounds.critical) is CRITICAL
        assert bounds.severity(bounds.warning * 0.999 - 1e-6) is OK


# Certificates


NOW = datetime.now(UTC)


def of_chain(tmp_path: Path, content: bytes, **settings: str) -> list[Finding]:
    """What is found where this is the broker's chain."""
    file = tmp_path / "chain.pem"
    file.write_bytes(content)
    config = BrokerConfig(tls_certificate=str(file), tls_key="key.pem", **settings)  # type: ignore[arg-type]
    return certificates.of_settings(config, NOW)


@pytest.mark.parametrize(
    ("days", "severity", "words"),
    [
        (31.5, OK, "ends in 31 days"),
        (29.5, WARNING, "ends in 29 days"),
        (7.5, WARNING, "ends in 7 days"),
        (6.5, CRITICAL, "ends in 6 days"),
        (3.5, CRITICAL, "ends in 3 days"),
        (-1.5, CRITICAL, "ended 2 days ago"),
    ],
)
def test_a_certificate_warns_a_month_before_its_end(
    tmp_path: Path, days: float, severity: Severity, words: str
) -> None:
    (found,) = of_chain(tmp_path, Authority.make().issue("shop", days=days)[1])
    assert (found.severity, words in found.found) == (severity, True), found
    assert "of shop," in found.found
    assert re.search(r", on \d{4}-\d\d-\d\d$", found.found)
    assert ("replace the file" in found.remedy) is bool(severity)


def test_every_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    authority = Authority.make(days=5.5)
    found = of_chain(tmp_path, authority.issue("shop", days=100)[1] + authority.pem)
    assert [each.severity for each in found] == [OK, CRITICAL]
    assert "of test authority," in found[1].found


def test_the_files_of_the_database_url_count(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(Authority.make(days=10.5).pem)
    config = BrokerConfig(database=f"mysql://u:p@host/db?ssl_ca={tmp_path}/ca.pem")
    (found,) = certificates.of_settings(config, NOW)
    assert (found.severity, found.found.startswith("ssl_ca: ")) == (WARNING, True)


@pytest.mark.parametrize("setting", ["ssl_ca", "tls_client_ca"])
def test_a_bundle_of_authorities_is_judged_by_the_last_one_to_end(tmp_path: Path, setting: str) -> None:
    """A few of a system's authorities always end soon, or ended; the one in use is not known."""
    soon = [Authority.make(f"old {number}", days=number - 2.5).pem for number in range(certificates.FEW)]
    odd = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    (found,) = of_authorities(tmp_path, setting, b"".join([*soon, odd, Authority.make("new", days=100.5).pem]))
    assert (found.severity, found.remedy) == (OK, "")
    assert found.found.startswith(f"{setting}: of the 6 certificates in '{tmp_path}/ca.pem' the last to end, of new,")
    (found,) = of_authorities(tmp_path, setting, b"".join([*soon, Authority.make("last", days=20.5).pem]))
    assert (found.severity, "of last, ends in 20 days" in found.found) == (WARNING, True)


@pytest.mark.parametrize("setting", ["ssl_ca", "tls_client_ca"])
def test_a_few_authorities_are_judged_one_by_one(tmp_path: Path, setting: str) -> None:
    """Two while one takes the place of the other."""
    both = Authority.make("old", days=5.5).pem + Authority.make("new", days=100).pem
    found = of_authorities(tmp_path, setting, both)
    assert [each.severity for each in found] == [CRITICAL, OK]


def of_authorities(tmp_path: Path, setting: str, content: bytes) -> list[Finding]:
    """What is found where this is the file of authorities that a setting names."""
    file = tmp_path / "ca.pem"
    file.write_bytes(content)
    if setting == "ssl_ca":
        return certificates.of_settings(BrokerConfig(database=f"mysql://u:p@host/db?ssl_ca={file}"), NOW)
    (tmp_path / "chain.pem").write_bytes(Authority.make(days=100).issue("shop", days=100)[1])
    config = BrokerConfig(tls_certificate=str(tmp_path / "chain.pem"), tls_key="key.pem", tls_client_ca=str(file))
    return [each for each in certificates.of_settings(config, NOW) if each.found.startswith(setting)]


def test_the_authorities_of_the_system_are_all_right(tmp_path: Path) -> None:
    system = Path(ssl.get_default_verify_paths().openssl_cafile)
    if not system.is_file():
        pytest.skip("the system has no file of authorities")
    (found,) = of_authorities(tmp_path, "ssl_ca", system.read_bytes())
    assert found.severity is OK


def test_a_certificate_that_cannot_be_read_is_a_finding_beside_the_others(tmp_path: Path) -> None:
    """OpenSSL takes versions of certificates that do not exist."""
    authority = Authority.make(days=100)
    key, chain = authority.issue("shop", days=100)
    (tmp_path / "chain.pem").write_bytes(of_version_6(chain))
    (tmp_path / "key.pem").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.recv(1)

        answered = pool.submit(answer)
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        (found,) = certificates.of_endpoint(endpoint, TlsConfig(None, None, None), NOW)
        answered.result(30)
    assert found.severity is CRITICAL
    assert found.found.startswith(f"the certificate that {endpoint} shows cannot be read: 5 is not a valid")
    (found,) = of_chain(tmp_path, of_version_6(chain))
    assert (found.severity, "that can be read" in found.found) == (CRITICAL, True)


def of_version_6(chain: bytes) -> bytes:
    """The certificate with another number of its version, whatever its signature is then."""
    der = ssl.PEM_cert_to_DER_cert(chain.decode())
    version = b"\xa0\x03\x02\x01"
    return ssl.DER_cert_to_PEM_cert(der.replace(version + b"\x02", version + b"\x05", 1)).encode()


def test_a_certificate_that_does_not_count_yet(tmp_path: Path) -> None:
    config = BrokerConfig(tls_certificate=str(tmp_path / "chain.pem"), tls_key="key.pem")
    (tmp_path / "chain.pem").write_bytes(Authority.make(days=100).pem)
    (found,) = certificates.of_settings(config, NOW - timedelta(days=200))
    assert (found.severity, "is not valid before" in found.found) == (CRITICAL, True)


@pytest.mark.parametrize("content", [b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_that_holds_no_certificate(tmp_path: Path, content: bytes) -> None:
    (found,) = of_chain(tmp_path, content)
    assert (found.severity, "it holds no certificate" in found.found) == (CRITICAL, True)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    config = BrokerConfig(tls_certificate=str(tmp_path / "none"), tls_key="key.pem")
    (found,) = certificates.of_settings(config, NOW)
    assert (found.severity, "No such file" in found.found) == (CRITICAL, True)


# Brokers


SERVING, RESTING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def serving(servicer: object) -> Iterator[str]:
    """A server with nothing but its health; where it listens."""
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


class Health(health.HealthServicer):  # type: ignore[misc]
    """With a list of its services, as brokers have it."""

    def List(self, request: object, context: object) -> health_pb2.HealthListResponse:  # noqa: N802 - gRPC names it
        states = {name: health_pb2.HealthCheckResponse(status=each) for name, each in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=states)


def looked(servicer: health.HealthServicer) -> Finding:
    """What is found, without the address."""
    with serving(servicer) as endpoint:
        (found,) = endpoints.look(endpoint, None)
    assert found.found.startswith(f"{endpoint} ")
    return replace(found, found=found.found.removeprefix(f"{endpoint} "))


@pytest.mark.parametrize("kind", [Health, health.HealthServicer])
def test_a_broker_that_serves_and_one_that_drains(kind: type[health.HealthServicer]) -> None:
    """Also one that cannot list its services."""
    servicer = kind()
    found = looked(servicer)
    assert (found.severity, found.found) == (OK, "answers and serves")
    servicer.set("", RESTING)
    found = looked(servicer)
    assert (found.severity, found.found) == (WARNING, "answers, and does not serve: it drains, or is not ready")


def test_a_service_of_a_broker_that_is_not_ready() -> None:
    servicer = Health()
    servicer.set("readiness", RESTING)
    servicer.set("other", SERVING)
    found = looked(servicer)
    assert (found.severity, found.found) == (WARNING, "answers, and does not serve readiness")


def test_a_server_that_is_no_broker() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    (found,) = endpoints.look(f"127.0.0.1:{port}", None)
    server.stop(None).wait()
    assert (found.severity, "does not answer (UNIMPLEMENTED" in found.found) == (CRITICAL, True)


# The report


FOUND = [
    Finding("clock", OK, "no difference"),
    Finding("tables", WARNING, "an index of [somebody]\x1b[2J", "drop it"),
    Finding("tables", OK, "the others"),
    Finding("rights", CRITICAL, "none", "GRANT them"),
]


def test_on_a_terminal_it_is_a_table_that_cannot_move_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    report.write(FOUND, "", as_json=False, verbose=False)
    text = screen.getvalue()
    assert text.index("CRITICAL") < text.index("WARNING")
    assert "an index of [somebody]?[2J" in text
    assert "no difference" not in text
    assert text.endswith("1 critical, 1 warning, 1 of 3 checks passed\n")


def test_piped_it_is_a_line_for_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    report.write(FOUND, "", as_json=False, verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "CRITICAL rights: none. Remedy: GRANT them.",
        "WARNING tables: an index of [somebody]?[2J. Remedy: drop it.",
        "OK clock: no difference.",
        "OK tables: the others.",
        "1 critical, 1 warning, 1 of 3 checks passed",
    ]


def test_its_status_is_that_of_the_worst_finding() -> None:
    assert report.status_of([], "") == 0
    assert report.status_of(FOUND[:1], "") == 0
    assert report.status_of(FOUND[:3], "") == 1
    assert report.status_of(FOUND, "") == 2
    assert report.status_of(FOUND, "the database cannot be reached") == 3


def test_its_checks_have_names_of_their_own() -> None:
    assert len(set(ALL_CHECKS)) == len(ALL_CHECKS) == 19
