"""Local transactions on plain DB-API connections: PyMySQL, mysqlclient, psycopg, psycopg2 and sqlite3."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import uuid
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import Failure, dialect_of
from client_core.local_database.transactions import Ending, LocalTransaction

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = [
    "AUTOCOMMITS",
    "DRIVERS",
    "DbapiTransaction",
    "driver_of",
    "in_transaction",
    "is_aborted",
    "refuse_autocommit",
]

DRIVERS = {
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "sqlite3": "sqlite",
}
"""The database of each driver, by the package of its connections."""

AUTOCOMMITS = (
    "the connection commits each statement by itself (autocommit); what belongs to your transaction needs one: begin "
    "it, or switch autocommit off"
)

_PLACE = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_IN_TRANSACTION = 1
"""MySQL's SERVER_STATUS_IN_TRANS."""
_IDLE = 0
"""PQTRANS_IDLE of PostgreSQL's client library."""
_ABORTED = 3
"""PQTRANS_INERROR."""


class DbapiTransaction(LocalTransaction):
    """The transaction of a connection."""

    def __init__(self, connection: Any, driver: str) -> None:
        """Takes the connection; nothing is begun."""
        self.given = connection
        self.dialect = dialect_of(DRIVERS[driver])
        self._driver = driver
        self._begun_here = False
        self._mark = ""
        self._was_open = False

    def begin(self) -> None:
        """Joins the open transaction, or begins one.

        Raises:
            ConfigurationError: The connection commits each statement by itself, and does not tell what is open.
        """
        # A driver without autocommit begins with the next statement by itself.
        begins = not self._in_transaction() and (self._autocommits() or self._driver == "sqlite3")
        self.take(self.given)
        if begins:
            self._run("BEGIN", {}).close()
            self._begun_here = True

    def join(self) -> None:
        """Takes what is open, or what the driver opens with the next statement.

        Raises:
            ConfigurationError: The connection commits each statement by itself.
        """
        refuse_autocommit(self.given)

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        with contextlib.closing(self._run(sql, values)) as cursor:
            self._was_open |= self.in_transaction()
            return int(cursor.rowcount)

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement without rows."""
        with contextlib.closing(self._run(sql, values)) as cursor:
            if cursor.description is None:
                return []
            rows = cursor.fetchall()
            # Connections may be set to give dictionaries.
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]

    def in_transaction(self) -> bool:
        """By the state that the driver keeps."""
        return True if self._driver == "MySQLdb" else self._in_transaction()

    def is_same(self) -> None:
        """A driver tells whether a transaction is open, not which."""
        return

    def is_unbroken(self) -> bool:
        """By the state that the driver keeps: what was open here is open still."""
        return self.in_transaction() or not self._was_open

    def is_going_on(self) -> bool:
        """Until its end: before the first change, drivers tell of no transaction."""
        return True

    def watch(self) -> None:
        """By a savepoint, which ends with the transaction: drivers do not tell one from the next."""
        if self.dialect.name == "sqlite" and not self._in_transaction():
            # The driver begins with the first change, and a savepoint outside of a transaction would be one.
            self.execute("BEGIN")
        self._mark = f"halfmq_{uuid.uuid4().hex}"
        self.execute(f"SAVEPOINT {self._mark}")

    def is_whole(self) -> bool:
        """By releasing the savepoint."""
        try:
            self.execute(f"RELEASE SAVEPOINT {self._mark}")
        except Exception as error:
            if self.dialect.failure_of(error) is Failure.NO_SAVEPOINT:
                return False
            raise
        return True

    def commit(self) -> Ending:
        """Commits."""
        self.let_go()
        if self._begun_here and self._driver == "sqlite3":
            # With autocommit=True the connection's own commit() does nothing.
            self._run("COMMIT", {}).close()
        else:
            self.given.commit()
        return Ending.COMMITTED

    def rollback(self) -> None:
        """Rolls back."""
        self.let_go()
        if self._begun_here and self._driver == "sqlite3":
            if self.given.in_transaction:
                self._run("ROLLBACK", {}).close()
        else:
            self.given.rollback()

    def known_by(self) -> Hashable | None:
        """The connection itself, where it can be remembered without being kept."""
        return None if isinstance(self.given, sqlite3.Connection) else self.given

    def _run(self, sql: str, values: dict[str, Any]) -> Any:
        cursor = self.given.cursor()
        if self._driver != "sqlite3" and values:
            sql = _PLACE.sub(r"%(\1)s", sql.replace("%", "%%"))
        try:
            cursor.execute(sql, values) if values else cursor.execute(sql)
        except BaseException:
            cursor.close()
            raise
        return cursor

    def _in_transaction(self) -> bool:
        known = in_transaction(self.given)
        if known is not None:
            return known
        if self._autocommits():
            msg = (
                "connections of mysqlclient do not tell whether a transaction is open: switch autocommit off "
                "(connection.autocommit(False)) before the block"
            )
            raise ConfigurationError(msg, field="database")
        return False

    def _autocommits(self) -> bool:
        given = self.given
        if self._driver in {"pymysql", "MySQLdb"}:
            return bool(given.get_autocommit())
        if self._driver == "sqlite3":
            return given.isolation_level is None
        return bool(given.autocommit)


def in_transaction(connection: Any) -> bool | None:
    """Whether a connection of a driver, of asyncio too, has a transaction open; None: the driver does not tell."""
    if hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        return bool(connection.in_transaction)
    if hasattr(connection, "server_status"):  # PyMySQL, aiomysql
        return bool(connection.server_status & _IN_TRANSACTION)
    if hasattr(connection, "info") and hasattr(connection.info, "transaction_status"):  # psycopg, psycopg2
        return int(connection.info.transaction_status) != _IDLE
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    return None


def is_aborted(connection: Any) -> bool:
    """Whether PostgreSQL has aborted the transaction of a connection, as far as the driver tells."""
    info = getattr(connection, "info", None)
    return int(getattr(info, "transaction_status", _IDLE)) == _ABORTED


def refuse_autocommit(connection: Any) -> None:
    """Refuses a connection of a driver, of asyncio too, that would commit the next statement by itself.

    Raises:
        ConfigurationError: It would, as far as the driver tells.
    """
    if in_transaction(connection):
        return
    if hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient, aiomysql
        alone = bool(connection.get_autocommit())
    elif hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        alone = connection.isolation_level is None
    else:
        alone = getattr(connection, "autocommit", False) is True
    if alone:
        raise ConfigurationError(AUTOCOMMITS, field="database")


def driver_of(given: object) -> str | None:
    """The driver of a DB-API connection; None: it is not one of those that are known."""
    for base in type(given).__mro__:
        package = base.__module__.partition(".")[0]
        if package in DRIVERS and base.__name__.lower() == "connection":
            return package
    return None
