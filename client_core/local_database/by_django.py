"""Local transactions of Django: ``transaction.atomic`` on one of its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy

from client_core.local_database.by_dbapi import _PLACE
from client_core.local_database.dialects import dialect_of
from client_core.local_database.transactions import Ending, LocalTransaction

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DjangoTransaction", "alias_of"]

_FAILED = 3
"""PQTRANS_INERROR of PostgreSQL's client library."""


class DjangoTransaction(LocalTransaction):
    """An atomic block of the calling thread's connection; inside of another one it is a savepoint of that."""

    def __init__(self, alias: str) -> None:
        """Takes the connection's name in DATABASES; nothing is begun."""
        self.given = connections[alias]
        self.dialect = dialect_of(self.given.vendor)
        self._alias = alias
        self._outer = False
        self._atomic: Any = None

    def begin(self) -> None:
        """Enters the atomic block."""
        self._outer = self.given.in_atomic_block
        self._atomic = transaction.atomic(using=self._alias)
        self._atomic.__enter__()

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        with self.given.cursor() as cursor:
            cursor.execute(_PLACE.sub(r"%(\1)s", sql), values or None)
            return int(cursor.rowcount)

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement without rows."""
        with self.given.cursor() as cursor:
            cursor.execute(_PLACE.sub(r"%(\1)s", sql), values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def in_transaction(self) -> bool:
        """By Django's own account."""
        return bool(self.given.in_atomic_block)

    def is_same(self) -> bool:
        """Django itself refuses to end a transaction inside of an atomic block."""
        return self._atomic is not None

    def has_failed(self) -> bool:
        """By Django's flag, which leaves out errors of data; on PostgreSQL these end a transaction as well."""
        failed: bool = self.given.errors_occurred
        if self.given.vendor == "postgresql":
            return failed or int(self.given.connection.info.transaction_status) == _FAILED
        return failed

    def commit(self) -> Ending:
        """Leaves the atomic block; marked for rollback (set_rollback), it is rolled back by Django."""
        atomic, self._atomic = self._atomic, None
        doomed = self.given.needs_rollback
        atomic.__exit__(None, None, None)
        if doomed:
            return Ending.ROLLED_BACK
        return Ending.LATER if self._outer else Ending.COMMITTED

    def rollback(self) -> None:
        """Leaves the atomic block as an exception would."""
        atomic, self._atomic = self._atomic, None
        if atomic is not None:
            transaction.set_rollback(True, using=self._alias)
            atomic.__exit__(None, None, None)

    def known_by(self) -> str:
        """The connection's name in DATABASES."""
        return self._alias

    def after_commit(self, call: Callable[[], None]) -> None:
        """By on_commit; what it raises does not undo what others have registered."""
        transaction.on_commit(call, using=self._alias, robust=True)


def alias_of(given: object) -> str | None:
    """The name of a connection of Django's; None: it is none."""
    if isinstance(given, ConnectionProxy | BaseDatabaseWrapper):
        return str(given.alias)
    return None
