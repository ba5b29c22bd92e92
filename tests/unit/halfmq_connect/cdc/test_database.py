"""Questions to a source, and errors of its server: which pass, which end the subscription. No server is needed."""

from __future__ import annotations

from typing import Any, Self

import pymysql
import pytest

from halfmq_connect.cdc import database
from halfmq_connect.cdc.binlog import dump
from halfmq_connect.cdc.config import DatabaseSettings
from halfmq_connect.cdc.errors import CannotFollow, CdcError, Interrupted, WrongSetting
from halfmq_connect.cdc.positions import MySqlPosition

SETTINGS = DatabaseSettings(("db:3306",), "cdc", 7)


class FakeConnection:
    """A connection, and its cursor, to a server of a version; answers all other questions with one error."""

    def __init__(self, version: str, error: Exception | None = None) -> None:
        self.version = version
        self.error = error
        self.closed = False
        self.asked: list[str] = []

    def cursor(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def execute(self, statement: str, _: object = None) -> None:
        self.asked.append(statement)
        if self.error is not None and "VERSION()" not in statement:
            raise self.error

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [(self.version,)] if "VERSION()" in self.asked[-1] else [(33, "utf8mb3")]

    def fetchone(self) -> tuple[str]:
        return ("CRC32",)

    def _write_bytes(self, _: bytes) -> None:
        raise pymysql.err.OperationalError(2006, "MySQL server has gone away (BrokenPipeError)")

    def _force_close(self) -> None:
        self.closed = True


def source_of(monkeypatch: pytest.MonkeyPatch, connection: FakeConnection) -> database.Source:
    monkeypatch.setattr(database, "connect", lambda *_, **__: connection)
    return database.Source(SETTINGS, "db:3306")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pymysql.err.OperationalError(1054, "Unknown column 'ID' in 'SELECT'"), CannotFollow),
        (pymysql.err.ProgrammingError(1064, "You have an error in your SQL syntax"), CannotFollow),
        (pymysql.err.ProgrammingError(1146, "Table 'shop.orders' doesn't exist"), CannotFollow),
        (pymysql.err.OperationalError(1227, "Access denied"), WrongSetting),
        (pymysql.err.OperationalError(1053, "Server shutdown in progress"), Interrupted),
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), Interrupted),
        (pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"), Interrupted),
        (pymysql.err.InterfaceError(0, ""), Interrupted),
        (pymysql.err.InternalError("Packet sequence number wrong - got 1 expected 2"), Interrupted),
        (ConnectionResetError(104, "Connection reset by peer"), Interrupted),
    ],
)
def test_only_what_passes_is_tried_again(
    error: Exception, kind: type[CdcError], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(monkeypatch, FakeConnection("9.7.0", error))
    with pytest.raises(kind, match=r"db:3306|cdc"):
        source.ask("SELECT 1")


@pytest.mark.parametrize(
    ("version", "table"),
    [
        ("10.6.22-MariaDB", "COLLATIONS"),
        ("10.10.2-MariaDB", "COLLATION_CHARACTER_SET_APPLICABILITY"),
        ("11.4.5-MariaDB", "COLLATION_CHARACTER_SET_APPLICABILITY"),
        ("8.4.0", "COLLATIONS"),
    ],
)
def test_numbers_of_collations_are_asked_for_where_they_are(
    version: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = FakeConnection(version)
    assert source_of(monkeypatch, connection).charsets().name(33) == "utf8mb3"
    assert f"information_schema.{table} " in connection.asked[-1]


def test_a_connection_that_is_lost_while_the_log_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = FakeConnection("9.7.0")
    source = source_of(monkeypatch, connection)
    monkeypatch.setattr(dump, "connect", lambda *_, **__: connection)
    with pytest.raises(Interrupted, match="gone away"):
        dump.Dump(SETTINGS, source, MySqlPosition())
    assert connection.closed
