"""Refuses a database that would lose what the broker acknowledged, at the start and by name of the setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pymysql

from broker.errors import ConfigurationError
from broker.storage.engine.connection import HOLD_LIMIT, Database, trouble_of

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

OLDEST = {"mysql": (8, 4), "mariadb": (10, 6)}
SMALLEST_PACKET = 16 * 1024 * 1024
"""Bytes; statements grow to 12 MiB."""
BESIDE_A_BODY = 1024 * 1024
USUAL_BODY = 4 * 1024 * 1024

_ACCESS_DENIED = {1044, 1045, 1698}
_UNKNOWN_DATABASE = 1049


def open_database(
    url: str,
    *,
    answer_timeout: float,
    allow_unsafe: bool = False,
    largest_body: int = USUAL_BODY,
    table_prefix: str = "",
) -> tuple[Database, list[str]]:
    """Connects and checks; the database, and warnings about settings that are allowed but not good.

    Args:
        url: where it is.
        answer_timeout: seconds that a statement may take.
        allow_unsafe: warn of what would be refused.
        largest_body: bytes of the largest message that is to be stored.
        table_prefix: what the names of all tables begin with.

    Raises:
        ConfigurationError: wrong URL, server not reachable, wrong password, version too old, or settings under which
            acknowledged commits could be lost (unless `allow_unsafe`, which turns those into warnings).
    """
    try:
        database = Database(url, answer_timeout=answer_timeout, hold_limit=HOLD_LIMIT, table_prefix=table_prefix)
        try:
            unsafe, warnings = _check(database, largest_body)
            if unsafe and not allow_unsafe:
                raise ConfigurationError(" ".join(unsafe), field="database")
        except BaseException:
            database.close()
            raise
    except (pymysql.err.MySQLError, OSError) as error:
        raise _connect_error(url, error) from error
    except Exception as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"The database cannot be opened: {error}", field="database") from error
    return database, unsafe + warnings


def _check(database: Database, largest_body: int) -> tuple[list[str], list[str]]:
    if database.in_memory:
        return ["SQLite in memory loses every message when the process ends: name a file."], []
    if not database.dialect.embedded:
        _check_version(database)
    session = database.session()
    try:
        found = ([], []) if database.dialect.embedded else _check_settings(session, largest_body)
        session.rollback()
    finally:
        database.release(session)
    return found


def _connect_error(url: str, error: Exception) -> ConfigurationError:
    from broker.storage.engine.connection import parse_url  # noqa: PLC0415 - only on this path

    shown = parse_url(url)
    code = error.args[0] if error.args else 0
    where = f"{shown.host}:{shown.port or 3306}"
    if code in _ACCESS_DENIED:
        text = f"The database server {where} refuses user {shown.username!r}: check name, password and grants."
    elif code == _UNKNOWN_DATABASE:
        text = f"The database {shown.database!r} does not exist on {where}: create it first (CREATE DATABASE)."
    else:
        kind = trouble_of(error).name
        text = f"The database server {where} cannot be reached ({kind}, {error}): is it running, is the port right?"
    return ConfigurationError(text, field="database")


def _check_version(database: Database) -> None:
    name = database.dialect.name
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", database.version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < OLDEST[name]:
        oldest = ".".join(map(str, OLDEST[name]))
        raise ConfigurationError(
            f"The server is {name} {database.version}; halfmq needs {oldest} or newer (SKIP LOCKED, window functions).",
            field="database",
        )


def _check_settings(session: Session, largest_body: int) -> tuple[list[str], list[str]]:
    flush, log_bin, sync_binlog, packet, doublewrite = session.fetch(
        "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.log_bin, @@GLOBAL.sync_binlog,"
        " @@GLOBAL.max_allowed_packet, @@GLOBAL.innodb_doublewrite"
    )[0]
    unsafe, warnings = [], []
    if int(flush) != 1:
        unsafe.append(
            f"innodb_flush_log_at_trx_commit is {flush}: acknowledged commits would be lost with the machine; "
            "set it to 1 (SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in my.cnf)."
        )
    if int(log_bin) and int(sync_binlog) != 1:
        warnings.append(
            f"sync_binlog is {sync_binlog} while a binary log is kept: after a crash replicas may lack acknowledged "
            "commits; set it to 1."
        )
    # A byte of a body takes two in a statement.
    needed = max(SMALLEST_PACKET, 2 * largest_body + BESIDE_A_BODY)
    if int(packet) < needed:
        unsafe.append(
            f"max_allowed_packet is {packet}: messages of {largest_body} bytes (max_body_bytes) would not fit; set it "
            f"to {needed} or more (SET GLOBAL max_allowed_packet = {needed}, and in my.cnf), or allow smaller bodies."
        )
    if str(doublewrite).upper() in {"0", "OFF"}:
        warnings.append("innodb_doublewrite is off: a torn page after a power failure would damage tables.")
    return unsafe, warnings
