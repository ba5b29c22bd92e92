"""Local transactions on plain DB-API connections: PyMySQL, mysqlclient, psycopg, psycopg2 and sqlite3."""

from __future__ import annotations

import contextlib
import sqlite3
import weakref
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import dialect_of
from client_core.local_database.drivers import (
    DRIVERS,
    autocommits,
    in_transaction,
    place_of,
    refuse_autocommit,
    refuse_unfinished,
    stay_in_session,
    with_places,
)
from client_core.local_database.guarding import Guard, guard_of
from client_core.local_database.transactions import Ending, LocalTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["DbapiTransaction"]

_NESTED = (
    "the block is inside of psycopg's connection.transaction(), whose end commits: begin the block outside of that (it "
    "may be used inside, as a savepoint), or inside of it use what ends nothing, outbox.put(connection, message) to "
    "send, applied.mark(connection, message) to apply"
)


class DbapiTransaction(LocalTransaction):
    """The transaction of a connection."""

    def __init__(self, connection: Any, driver: str) -> None:
        """Takes the connection; nothing is begun."""
        self.given = connection
        self.dialect = dialect_of(DRIVERS[driver])
        self._driver = driver
        self._begun_here = False
        self._guard: Guard | None = None
        self._was_open = False

    def begin(self) -> None:
        """Joins the open transaction, or begins one.

        Raises:
            ConfigurationError: The connection commits each statement by itself, and does not tell what is open; or
                psycopg is to commit it.
        """
        if getattr(self.given, "_num_transactions", 0):
            raise ConfigurationError(_NESTED, field="database")
        refuse_unfinished(self.given)
        stay_in_session(self.given)
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
        stay_in_session(self.given)
        refuse_autocommit(self.given)

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        with contextlib.closing(self._run(sql, values)) as cursor:
            self._was_open |= self.in_transaction()
            return int(cursor.rowcount)

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement without rows."""
        with contextlib.closing(self._run(sql, values)) as cursor:
            self._was_open |= self.in_transaction()
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
        if self._guard is not None and not self._guard.is_unbroken():
            return False
        return self.in_transaction() or not self._was_open

    def noting(self) -> str:
        """By what its database has for it."""
        return self._guarded().noting()

    def watch(self) -> None:
        """By what its database has for it."""
        (self._guard or self._guarded()).start()

    def _guarded(self) -> Guard:
        # Without a cycle: a block that never came to its end lets go of the connection with the last reference to it.
        own = weakref.ref(self)

        def fetch(sql: str, **values: Any) -> list[tuple[Any, ...]]:
            local = own()
            if local is None:
                msg = "the block is gone"
                raise LookupError(msg)
            return local.fetch(sql, **values)

        self._guard = guard_of(self.given, self.dialect, fetch)
        weakref.finalize(self, self._guard.stop)
        return self._guard

    def give_up(self) -> None:
        """Statements are not listened to any more."""
        self._stop_watching()

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        """By what its database has for it."""
        return self._guard is not None and self._guard.has_ended(is_gone)

    def sent(self) -> None:
        """Counted, where savepoints are seen."""
        if self._guard is not None:
            self._guard.sent()

    def unsent(self) -> None:
        """Not counted."""
        if self._guard is not None:
            self._guard.unsent()

    def has_lost_messages(self) -> bool:
        """As far as savepoints are seen."""
        return self._guard is not None and self._guard.has_lost_messages()

    def is_whole(self) -> bool | None:
        """By what its database has for it."""
        return True if self._guard is None else self._guard.is_whole()

    def _stop_watching(self) -> None:
        self.let_go()
        if self._guard is not None:
            self._guard.stop()
            self._guard = None

    def commit(self) -> Ending:
        """Commits."""
        self._stop_watching()
        if self._begun_here and self._driver == "sqlite3":
            # With autocommit=True the connection's own commit() does nothing.
            self._run("COMMIT", {}).close()
        else:
            self.given.commit()
        return Ending.COMMITTED

    def rollback(self) -> None:
        """Rolls back."""
        self._stop_watching()
        if self._begun_here and self._driver == "sqlite3":
            if self.given.in_transaction:
                self._run("ROLLBACK", {}).close()
        else:
            self.given.rollback()

    def known_by(self) -> Hashable | None:
        """The connection itself, where it can be remembered without being kept."""
        return None if isinstance(self.given, sqlite3.Connection) else self.given

    def place(self) -> Hashable | None:
        """By the address, as the driver keeps it; mysqlclient keeps none."""
        return place_of(self.given) or self.known_by()

    def _run(self, sql: str, values: dict[str, Any]) -> Any:
        refuse_unfinished(self.given)
        cursor = self.given.cursor()
        if self._driver != "sqlite3" and values:
            sql = with_places(sql)
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
        return autocommits(self.given)
