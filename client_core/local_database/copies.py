"""Whether a local transaction is on the database that halfmq itself looks at, or on a copy of it.

A copy (a replica, a restored dump, another schema) has the same tables with the same rows, so that no row tells the two
apart. What a copy has not is a lock: the row that the local transaction has just written is held by it, in that one
database only. So another connection tries to take that row, without waiting. SQLite has files, which are compared.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import Failure
from client_core.local_database.verified import VerifiedDatabases

if TYPE_CHECKING:
    from collections.abc import Hashable

    from client_core.local_database.databases import LocalDatabase
    from client_core.local_database.transactions import LocalTransaction

__all__ = ["HeldRow", "SameDatabase", "WrittenRow"]


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A row that a local transaction has just written, and how another one would take it.

    Attributes:
        table: Its table.
        key: The value of a unique key.
        select: Reads it by that.
        values: Further values of a row.
        insert: Writes one with the same key.
    """

    table: str
    key: dict[str, Any]
    select: str
    values: dict[str, Any]
    insert: str


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row to be looked for from elsewhere: which local transaction wrote it, and on SQLite into which file."""

    row: HeldRow
    local: LocalTransaction
    file: str | None


class SameDatabase:
    """Compares once for each engine; plain connections of SQLite, which cannot be remembered, each time by their files.

    The engine that halfmq itself looks at is not compared.
    """

    def __init__(self, own: Hashable | None) -> None:
        """Takes what stands for that: an engine, the name of a connection of Django's; None: nothing does."""
        self._own = own
        self._compared = VerifiedDatabases(lambda local: local.place())
        self._own_files: dict[str, str] | None = None

    def written(self, local: LocalTransaction, row: HeldRow) -> WrittenRow | None:
        """What is to be looked for, noted in the local transaction that has just written it; None: nothing."""
        if self._is_own(local.known_by()) or self._compared.has(local):
            return None
        return WrittenRow(row, local, _files(local).get(_schema(row.table)) if local.dialect.name == "sqlite" else None)

    def compare(self, database: LocalDatabase, written: WrittenRow) -> None:
        """Looks for it by a connection of halfmq's own.

        Raises:
            ConfigurationError: It is not there: that is another database.
        """
        if written.local.dialect.name == "sqlite":
            is_same = self._is_same_file(database, written)
        else:
            is_same = _is_held(database, written.row)
        if not is_same:
            msg = (
                f"database is a copy of the one that the local transaction is on (a replica, a restored dump, another "
                f"schema): its table {written.row.table} does not have the row that the local transaction has just "
                "written, so that a check would answer ROLLBACK to what is committed. Hand in the Engine of the "
                "sessions themselves, or one of the same primary server and database"
            )
            raise ConfigurationError(msg, field="database")
        self._compared.add(written.local)

    def _is_own(self, known_by: Hashable | None) -> bool:
        if known_by is None or self._own is None:
            return False
        # Engines of execution_options() have connections of the same pool.
        pool = getattr(self._own, "pool", None)
        return known_by == self._own or (pool is not None and getattr(known_by, "pool", None) is pool)

    def _is_same_file(self, database: LocalDatabase, written: WrittenRow) -> bool:
        if self._own_files is None:
            with database.transaction() as own:
                self._own_files = _files(own)
        own_file = self._own_files.get(_schema(written.row.table))
        if not own_file or not written.file:
            return not own_file and not written.file
        return own_file == written.file or os.path.samefile(own_file, written.file)


def _is_held(database: LocalDatabase, row: HeldRow) -> bool:
    """Whether another transaction holds a row, as a connection of halfmq's own finds it; changes nothing."""
    try:
        with database.transaction(0.0) as own:
            if own.dialect.nowait:
                own.fetch(row.select + own.dialect.nowait, **row.key)
            else:
                own.execute(row.insert, **row.key, **row.values)
            raise _NotHeldError  # And rolls back.
    except _NotHeldError:
        return False
    except Exception as error:
        failure = own.dialect.failure_of(error)
        if failure is Failure.READ_ONLY:
            return False
        if failure is not Failure.LOCKED:
            raise
    return True


class _NotHeldError(Exception):
    """Nobody has the row."""


def _files(local: LocalTransaction) -> dict[str, str]:
    return {str(row[1]): str(row[2] or "") for row in local.fetch("PRAGMA database_list")}


def _schema(table: str) -> str:
    return table.rpartition(".")[0] or "main"
