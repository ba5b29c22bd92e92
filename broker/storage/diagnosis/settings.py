"""Settings of the database: what survives a crash, whether it takes writes and connections, and isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import ConfigurationError
from broker.ports.diagnosis import Finding, Severity
from broker.storage.diagnosis.inspection.servers import variables
from broker.storage.engine.durability import settings_of_others

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

_READ_ONLY = ("read_only", "super_read_only", "innodb_read_only")
_ISOLATION = ("transaction_isolation", "tx_isolation")
"""The second is MariaDB's older name."""
_WANTED = "READ-COMMITTED"


def durability(subject: Subject) -> list[Finding]:
    """The version, and the settings that brokers look at when they start; also whether writes are accepted."""
    name, database = "settings", subject.database
    try:
        promise = database.dialect.check(
            subject.session, database.target, database.version, subject.settings.largest_body
        )
    except ConfigurationError as error:
        return [Finding(name, Severity.CRITICAL, error.message, "upgrade the server")]
    findings = [
        Finding(name, severity, each.found, each.remedy)
        for severity, some in (
            (Severity.CRITICAL, promise.unsafe),
            (Severity.WARNING, promise.warnings),
            (Severity.WARNING, settings_of_others(database, subject.settings.largest_body, promise)),
        )
        for each in some
    ]
    if database.dialect.one_writer:
        return findings + _of_file(subject)
    survived = Finding(name, Severity.OK, f"an acknowledged commit survives {promise.survives}")
    return [*findings, survived, *_of_server(subject)]


def _of_server(subject: Subject) -> list[Finding]:
    name, findings = "settings", []
    found = variables(subject.session, *_READ_ONLY, "max_connections")
    on = [each for each in _READ_ONLY if found.get(each, "OFF").upper() not in {"OFF", "0"}]
    if on:
        findings.append(
            Finding(
                name,
                Severity.CRITICAL,
                f"{on[0]} is on: the server accepts no writes",
                f"name the primary server in the database URL, or switch it off (SET GLOBAL {on[0]} = OFF)",
            )
        )
    used = int(subject.session.fetch("SHOW GLOBAL STATUS LIKE 'Threads_connected'")[0][1])
    most = int(found["max_connections"])
    severity = subject.settings.connections.severity(used / most)
    findings.append(
        Finding(
            name,
            severity,
            f"{used} of {most} connections are in use",
            ""
            if severity is Severity.OK
            else "raise max_connections (SET GLOBAL, and in my.cnf), or find who keeps"
            " them (SHOW PROCESSLIST); a broker needs 4 to 8, and opens 32 at most",
        )
    )
    return findings


def _of_file(subject: Subject) -> list[Finding]:
    mode = subject.file.journal_mode(subject.session)
    if mode in {"wal", "memory"}:
        return [Finding("settings", Severity.OK, f"journal mode {mode}")]
    return [
        Finding(
            "settings",
            Severity.WARNING,
            f"the file's journal mode is {mode}, not wal: readers and writers wait for each other",
            "move the file to a local disk: SQLite keeps a write-ahead log only there",
        )
    ]


def isolation(subject: Subject) -> list[Finding]:
    """The isolation level that a broker's session gets, and whether the binary log can be written under it."""
    session = subject.session
    found = variables(session, *_ISOLATION, "binlog_format", "log_bin", scope="SESSION")
    level = next((found[each] for each in _ISOLATION if each in found), "unknown")
    findings = []
    if level != _WANTED:
        findings.append(
            Finding(
                "isolation",
                Severity.CRITICAL,
                f"the isolation level of a session is {level}, though a broker asked for {_WANTED}: what other brokers"
                " committed would not be seen",
                "look for what changes it between broker and server, such as a proxy that shares sessions: connect"
                " directly, or switch that off",
            )
        )
    if found.get("binlog_format", "").upper() == "STATEMENT" and found.get("log_bin", "OFF").upper() in {"ON", "1"}:
        findings.append(
            Finding(
                "isolation",
                Severity.CRITICAL,
                f"binlog_format is STATEMENT: under {_WANTED} the server refuses every write",
                "set it to ROW (SET GLOBAL binlog_format = 'ROW', and in my.cnf), then restart the brokers",
            )
        )
    return findings or [Finding("isolation", Severity.OK, f"{level}")]
