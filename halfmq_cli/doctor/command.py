"""`halfmq doctor`: runs all checks, and tells by its status how bad the worst finding is."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from broker.config_sources import load_config
from broker.errors import BrokerError, ConfigurationError
from broker.maintenance.retention import INTERVAL, KEEP_REFUSED
from broker.ports.diagnosis import DAY, SECOND, Bounds, DiagnosisSettings, Finding, Severity
from broker.storage.diagnosis.examination import CHECKS, examine
from broker.storage.engine.connection import parse_url
from broker.storage.engine.durability import connect
from client_core.connection import Connection, TlsConfig
from client_core.errors import HalfmqError
from halfmq_cli.doctor import certificates, endpoints
from halfmq_cli.doctor.report import UNKNOWN, status_of, write
from halfmq_cli.serve import ConfigFile, Database, DatabaseFile, TablePrefix  # noqa: TC001 - typer reads them
from halfmq_cli.serving import refuse_missing_file, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.config import BrokerConfig

OF_DATABASE = tuple(check.name for check in CHECKS)
ALL_CHECKS = (*OF_DATABASE, certificates.NAME, endpoints.NAME)
SWEEPS = 10
"""Rounds of retention that what is expired may stay for."""
_LISTED = ", ".join(ALL_CHECKS)


def doctor(
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help=f"Only this check; may be repeated. There are: {_LISTED}.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Not this check; may be repeated [none].")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Look at this broker, too; may be repeated [none]."),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Brokers have TLS; trust the system's authorities.")] = False,
    tls_ca: Annotated[Path | None, typer.Option(help="TLS; CA of the brokers' certificates (PEM file).")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Certificate to show to brokers (PEM file).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM file).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One object of JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also tell what is all right.")] = False,
    database: Database = None,
    database_file: DatabaseFile = None,
    table_prefix: TablePrefix = None,
    config_file: ConfigFile = None,
) -> None:
    """Find what is wrong with an installation, and tell the remedies. It only reads.

    Give it the brokers' settings (--config, or HALFMQ_ variables): what is late depends on them.

    The exit status is that of a monitoring plugin: 0 nothing is wrong, 1 a warning, 2 something critical, 3 it could
    not look (wrong arguments, or the database cannot be reached).
    """
    try:
        names = _wanted(only or (), skip or ())
        arguments = {"database": database, "database_file": database_file, "table_prefix": table_prefix}
        config = load_config(arguments, file=config_file)
        parse_url(config.database)
        brokers = list(Connection(",".join(endpoint)).endpoints) if endpoint else []
        if only and endpoints.NAME in only and not brokers:
            raise ConfigurationError("The check endpoints needs an --endpoint.", field="endpoint")
        security = _tls(tls, tls_ca, tls_certificate, tls_key)
    except BrokerError as error:
        _fail(shown(error))
    except HalfmqError as error:
        _fail(str(error))
    findings: list[Finding] = []
    try:
        problem = _diagnosis(config, names, brokers, security, findings)
    except Exception as error:
        traceback.print_exc()
        problem = f"a fault of the command itself: {type(error).__name__}"
    if not (findings or problem):
        _fail("only: None of these checks is for this database.")
    if problem:
        sys.stderr.write(f"halfmq: {problem}\n")
    write(findings, problem, as_json=json_output, verbose=verbose)
    raise SystemExit(status_of(findings, problem))


def _diagnosis(
    config: BrokerConfig,
    names: Iterable[str],
    brokers: Iterable[str],
    security: TlsConfig | None,
    findings: list[Finding],
) -> str:
    """Adds all findings, so that none is lost by a fault; returns why the database could not be looked at, if so."""
    problem = ""
    of_database = [name for name in names if name in OF_DATABASE]
    if of_database:
        try:
            findings += _of_database(config, of_database)
        except BrokerError as error:
            problem = shown(error)
    if certificates.NAME in names:
        findings += _of_certificates(config, brokers, security)
    if endpoints.NAME in names:
        for each in brokers:
            findings += endpoints.look(each, security)
    return problem


def _of_certificates(config: BrokerConfig, brokers: Iterable[str], security: TlsConfig | None) -> list[Finding]:
    findings = certificates.of_settings(config, certificates.now())
    if security is not None:
        for each in brokers:
            findings += certificates.of_endpoint(each, security, certificates.now())
    return findings or [Finding(certificates.NAME, Severity.OK, "there is none to look at")]


def _of_database(config: BrokerConfig, names: list[str]) -> list[Finding]:
    refuse_missing_file(config.database)
    opened = connect(
        config.database, answer_timeout=config.answer_timeout, table_prefix=config.table_prefix, only_looks=True
    )
    try:
        return list(examine(opened, settings_of(config), names))
    finally:
        opened.close()


def settings_of(config: BrokerConfig) -> DiagnosisSettings:
    """What brokers with these settings keep, and for how long."""
    return DiagnosisSettings(
        policy=config.check_policy(),
        largest_body=config.max_body_bytes,
        migrates=config.migrate,
        keep_ops=config.retention,
        keep_events=int(config.history_hours * 3600e6),
        keep_leftovers=int(config.sink_hours * 3600e6),
        keep_audit=int(config.audit_days * 24 * 3600e6),
        keep_refused=KEEP_REFUSED,
        behind=Bounds(SWEEPS * INTERVAL * SECOND, DAY),
    )


def _wanted(only: Iterable[str], skip: Iterable[str]) -> list[str]:
    """The names of checks.

    Raises:
        ConfigurationError: there is no such check, or none is left.
    """
    for field, given in (("only", only), ("skip", skip)):
        for name in given:
            if name not in ALL_CHECKS:
                raise ConfigurationError(f"There is no check {name!r}; there are: {_LISTED}.", field=field)
    names = [name for name in ALL_CHECKS if (not only or name in only) and name not in skip]
    if not names:
        raise ConfigurationError("No check is left: name another one, or leave it out.", field="skip")
    return names


def _tls(tls: bool, ca: Path | None, certificate: Path | None, key: Path | None) -> TlsConfig | None:
    if not (tls or ca or certificate or key):
        return None
    content: list[bytes | None] = []
    for field, path in (("tls_ca", ca), ("tls_certificate", certificate), ("tls_key", key)):
        try:
            content.append(None if path is None else path.read_bytes())
        except OSError as error:
            raise ConfigurationError(f"The file {str(path)!r} cannot be read: {error.strerror}.", field=field) from None
    return TlsConfig(content[0], content[1], content[2])


def _fail(text: str) -> NoReturn:
    sys.stderr.write(f"halfmq: {text}\n")
    raise SystemExit(UNKNOWN)
