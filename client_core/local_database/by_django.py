"""Local transactions of Django: ``transaction.atomic`` on one of its connections."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import dialect_of
from client_core.local_database.drivers import stay_in_session, with_places
from client_core.local_database.listening import DriverListener
from client_core.local_database.transactions import Ending, LocalTransaction
from client_core.local_database.watching import Watch, WatchedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DjangoOwnTransaction", "DjangoTransaction", "alias_of"]


class DjangoTransaction(WatchedTransaction):
    """An atomic block of the calling thread's connection; inside of another one it is a savepoint of that."""

    def __init__(self, alias: str) -> None:
        """Takes the connection's name in DATABASES; nothing is begun."""
        self.given = connections[alias]
        self.dialect = dialect_of(self.given.vendor)
        self._alias = alias
        self._outer = False
        self._atomic: Any = None
        self._listener: DriverListener | None = None

    def begin(self) -> None:
        """Enters the atomic block.

        Raises:
            ConfigurationError: Django does not manage this connection's transactions.
        """
        self._outer = self.given.in_atomic_block
        # Inside of atomic() autocommit is off anyway; what was before is kept in commit_on_exit.
        if not (self.given.commit_on_exit if self._outer else self.given.get_autocommit()):
            msg = (
                "Django's autocommit is off on this connection (AUTOCOMMIT, set_autocommit), so atomic() does not "
                "commit: switch it on"
            )
            raise ConfigurationError(msg, field="database")
        self._atomic = transaction.atomic(using=self._alias)
        self._atomic.__enter__()
        try:
            stay_in_session(self.given.connection)
        except BaseException:
            self.rollback()
            raise

    def join(self) -> None:
        """Takes the atomic block that is open.

        Raises:
            ConfigurationError: There is none.
        """
        if not self.given.in_atomic_block and self.given.get_autocommit():
            msg = "there is no transaction to be part of: use it inside of transaction.atomic()"
            raise ConfigurationError(msg, field="database")
        if self.given.connection is not None:
            stay_in_session(self.given.connection)

    def on_commit(self, call: Callable[[], None]) -> bool:
        """By Django's own on_commit; what it raises does not undo what others have registered."""
        if self.given.in_atomic_block:
            transaction.on_commit(call, using=self._alias, robust=True)
        return bool(self.given.in_atomic_block)

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        with self.given.cursor() as cursor:
            cursor.execute(_placed(sql, values), values or None)
            return int(cursor.rowcount)

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement without rows."""
        with self.given.cursor() as cursor:
            cursor.execute(_placed(sql, values), values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def in_transaction(self) -> bool:
        """By Django's own account."""
        return bool(self.given.in_atomic_block)

    def is_unbroken(self) -> bool:
        """By what was seen of its statements."""
        return self.is_same() and self.in_transaction() and not (self._watch is not None and self._watch.has_ended())

    def watch(self) -> None:
        """By a wrapper around each statement."""
        self._watch = Watch(self.dialect, self._run_beside, lambda: self.given.connection)
        self.given.execute_wrappers.append(self._look)
        if DriverListener.can_listen(self.given.connection):
            # callproc() passes no wrapper.
            self._listener = DriverListener(self.given.connection)
            self._listener.start(self._watch)

    def is_whole(self) -> bool | None:
        """By what was seen."""
        self._stop_watching()
        return self.is_unbroken() and (self._watch is None or self._watch.is_whole(self.execute))

    def _look(self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:
        watch = self._watch
        if watch is None:
            return execute(sql, params, many, context)
        watch.before(sql)
        try:
            with self._listener.seen() if self._listener is not None else contextlib.nullcontext():
                result = execute(sql, params, many, context)
        except Exception as error:
            watch.failed(error)
            raise
        watch.after()
        return result

    def _run_beside(self, sql: str) -> list[tuple[Any, ...]]:
        if self._listener is not None:
            return self._listener.run(sql)
        with contextlib.closing(self.given.connection.cursor()) as cursor:
            cursor.execute(sql)
            return [] if cursor.description is None else [tuple(row) for row in cursor.fetchall()]

    def _stop_watching(self) -> None:
        if self._look in self.given.execute_wrappers:
            self.given.execute_wrappers.remove(self._look)
        if self._listener is not None:
            self._listener.stop()

    def is_same(self) -> bool:
        """Django itself refuses to end a transaction inside of an atomic block."""
        return self._atomic is not None

    def is_doomed(self) -> bool:
        """By set_rollback(), or an error inside of an atomic block without a savepoint."""
        return bool(self.given.needs_rollback)

    def commit(self) -> Ending:
        """Leaves the atomic block; marked for rollback (set_rollback), it is rolled back by Django."""
        self._stop_watching()
        atomic, self._atomic = self._atomic, None
        doomed = self.given.needs_rollback
        atomic.__exit__(None, None, None)
        if doomed:
            return Ending.ROLLED_BACK
        return Ending.LATER if self._outer else Ending.COMMITTED

    def rollback(self) -> None:
        """Leaves the atomic block as an exception would."""
        self._stop_watching()
        self._watch = None
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            transaction.set_rollback(True, using=self._alias)
            atomic.__exit__(None, None, None)

    def known_by(self) -> str:
        """The connection's name in DATABASES."""
        return self._alias


class DjangoOwnTransaction(LocalTransaction):
    """A transaction on a connection of its own, beside that of the calling thread."""

    def __init__(self, alias: str) -> None:
        """Copies the settings; nothing is connected yet."""
        self.given = connections[alias].copy()
        self.dialect = dialect_of(self.given.vendor)
        self._alias = alias

    def begin(self) -> None:
        """Begins with the next statement."""
        self.given.set_autocommit(False)

    def join(self) -> None:
        """The same as to begin: nobody else has the connection."""
        self.begin()

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        return DjangoTransaction.execute(self, sql, **values)  # type: ignore[arg-type]

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement without rows."""
        return DjangoTransaction.fetch(self, sql, **values)  # type: ignore[arg-type]

    def in_transaction(self) -> bool:
        """Always, since autocommit is off."""
        return True

    def is_same(self) -> None:
        """Nobody else has the connection."""
        return

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        """Nobody else has the connection."""
        return False

    def watch(self) -> None:
        """Nobody else has the connection."""
        return

    def is_whole(self) -> bool:
        """Nobody else has the connection."""
        return True

    def commit(self) -> Ending:
        """Commits."""
        self.given.commit()
        return Ending.COMMITTED

    def rollback(self) -> None:
        """Rolls back."""
        self.given.rollback()

    def known_by(self) -> str:
        """The connection's name in DATABASES."""
        return self._alias

    def close(self) -> None:
        """Closes the connection."""
        self.given.close()


def _placed(sql: str, values: dict[str, Any]) -> str:
    """A statement with its places as Django has them; without values it is not looked through for places."""
    return with_places(sql) if values else sql


def alias_of(given: object) -> str | None:
    """The name of a connection of Django's; None: it is none."""
    if isinstance(given, ConnectionProxy | BaseDatabaseWrapper):
        return str(given.alias)
    return None
