"""SQLite: a file, or memory of this process."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from broker.errors import ConfigurationError
from broker.storage.engine.cluster.promise import Promise
from broker.storage.engine.dialects.base import Dialect
from broker.storage.engine.failures import Failure
from broker.storage.engine.statements import Answer, Statement, Unexpected, marks, selection
from broker.storage.engine.unsuitable import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.storage.engine.dialects.base import Session, Target
    from broker.storage.engine.statements import Row

IN_MEMORY = ":memory:"
"""As the file name: an in-memory database of this process."""
LONGEST_WAIT = 10.0
"""Seconds to wait for the database's lock, at most."""
LOG_KEPT = 32 << 20
"""Bytes of the write-ahead log's file that are kept when it begins anew; otherwise it would never become smaller."""

_FAILURES = {
    "SQLITE_BUSY": Failure.RETRY,
    "SQLITE_LOCKED": Failure.RETRY,
    "SQLITE_FULL": Failure.FULL,
    "SQLITE_IOERR": Failure.FULL,
    "SQLITE_READONLY": Failure.READ_ONLY,
    "SQLITE_CANTOPEN": Failure.LOST,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Failure.DUPLICATE,
    "SQLITE_CONSTRAINT_UNIQUE": Failure.DUPLICATE,
}


class SQLite(Dialect):
    """SQLite as the embedded database; values are bound, not written into statements."""

    name = "sqlite"
    what = "file"
    one_writer = True
    take_offsets = (
        "UPDATE queue SET stored_bytes = stored_bytes + ?, next_offset = next_offset + ?"
        " WHERE queue_id = ? AND deleted_at IS NULL RETURNING next_offset"
    )
    joined_to = "CROSS JOIN"

    def keep_existing(self, column: str) -> str:
        """Suffix of an INSERT that skips rows whose key exists."""
        del column
        return " ON CONFLICT DO NOTHING"

    def deletion(self, table: str, column: str, keys: Sequence[Any]) -> list[Statement]:
        """Deletes by IN: there are no row locks of other sessions."""
        return selection(f"DELETE FROM {table} WHERE {column}", keys)

    def deletion_of(self, table: str, columns: str, keys: Sequence[Row]) -> list[Statement]:
        """One statement, run for each key."""
        where = " AND ".join(f"{name} = ?" for name in columns.split(", "))
        return [Statement(f"DELETE FROM {table} WHERE {where}", rows=keys)] if keys else []

    def update_each(self, table: str, key: str, column: str, values: Sequence[Row], where: str) -> list[Statement]:
        """One statement, run for each key."""
        pairs = [(value, wanted) for wanted, value in values]
        ending = f" AND {where}" if where else ""
        return [Statement(f"UPDATE {table} SET {column} = ? WHERE {key} = ?{ending}", rows=pairs)] if pairs else []

    def insertion(self, head: str, rows: Sequence[Row], tail: str) -> list[Statement]:
        """One statement, run for each row."""
        return [Statement(f"{head}({marks(rows[0])}){tail}", rows=rows)]

    def offset_after(self, answer: Answer) -> int:
        """The value of RETURNING."""
        return int(answer.rows[0][0])

    def begin(self, session: Session, *, write: bool) -> None:
        """Starts a writing transaction, which waits for the lock here; reads see the latest data at each statement.

        So do reads on a server (READ COMMITTED). A snapshot over several statements could be older than a change for
        which a cache was already cleared.
        """
        if write:
            session.cursor.execute("BEGIN IMMEDIATE")

    def commit(self, session: Session) -> None:
        """Commits, where there is a transaction."""
        if session.connection.in_transaction:
            session.cursor.execute("COMMIT")

    def rollback(self, session: Session) -> None:
        """Rolls back, where there is a transaction."""
        if session.connection.in_transaction:
            session.cursor.execute("ROLLBACK")

    def execute(self, cursor: Any, sql: str, values: Row) -> None:
        """Runs a statement with bound values."""
        cursor.execute(sql, values)

    def execute_all(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements one after another: a round trip costs nothing here."""
        answers = []
        for statement in statements:
            sql = named(statement.sql)
            if statement.rows:
                cursor.executemany(sql, statement.rows)
            else:
                cursor.execute(sql, statement.values or ())
            answer = Answer(cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0)
            if statement.expected not in {None, len(answer.rows) if answer.changed < 0 else answer.changed}:
                raise Unexpected(statement)
            answers.append(answer)
        return answers

    def finish(self, cursor: Any, statements: Sequence[Statement], named: Callable[[str], str]) -> list[Answer]:
        """Runs statements one after another, then commits."""
        answers = self.execute_all(cursor, statements, named)
        cursor.execute("COMMIT")
        return answers

    def now(self, session: Session) -> int:
        """The machine's clock."""
        del session
        return time.time_ns() // 1000

    def has_table(self, session: Session, name: str) -> bool:
        """Asks the schema."""
        return session.fetch_one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None

    def connect(self, target: Target, within: float) -> Any:
        """Opens the file, or the memory that all threads of this process share."""
        del within
        wait = min(LONGEST_WAIT, target.answer_timeout)
        if self.is_volatile(target):
            file = f"file:/halfmq-{os.getpid()}-{id(target)}?vfs=memdb"
            connection = sqlite3.connect(file, timeout=wait, isolation_level=None, check_same_thread=False, uri=True)
            connection.execute("PRAGMA journal_mode = MEMORY")
            return connection
        path = Path(str(target.url.database))
        if not path.parent.is_dir():
            raise ConfigurationError(f"The folder {str(path.parent)!r} does not exist; create it.", field="database")
        connection = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
        self._keep_a_log(connection, wait)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA busy_timeout = {int(wait * 1000)}")
        connection.execute("PRAGMA cache_size = -4096")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_KEPT}")
        return connection

    def _keep_a_log(self, connection: sqlite3.Connection, wait: float) -> None:
        """Switches to the write-ahead log, with retries: SQLite does not wait for a concurrent switch of a new file."""
        until = time.monotonic() + wait
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if self.failure_of(error) is not Failure.RETRY or time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                return

    def engine_of(self, connect: Callable[[], Any]) -> sa.Engine:
        """An engine on these connections."""
        return sa.create_engine("sqlite://", creator=connect, poolclass=sa.NullPool)

    def failure_of(self, error: BaseException) -> Failure | None:
        """By the name of the error's code, or of its group."""
        if not isinstance(error, sqlite3.Error):
            return None
        name = getattr(error, "sqlite_errorname", "")
        return _FAILURES.get(name) or _FAILURES.get("_".join(name.split("_")[:2]), Failure.OTHER)

    def check(self, session: Session, target: Target, version: str, largest_body: int) -> Promise:
        """A file has no settings to check."""
        if not self.is_volatile(target):
            return super().check(session, target, version, largest_body)
        lost = Unsuitable("SQLite in memory loses every message when the process ends", "name a file")
        return Promise("", unsafe=[lost])

    def is_volatile(self, target: Target) -> bool:
        """An in-memory database ends with the last connection."""
        return target.url.database == IN_MEMORY

    def identity_of(self, target: Target) -> object:
        """The file that has the name now: connections stay with one that was replaced, or deleted."""
        if self.is_volatile(target):
            return None
        try:
            found = os.stat(str(target.url.database))
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def take_migration_turn(self, connection: sa.Connection, database: str) -> None:
        """Other processes wait for the lock; all that follows is one transaction, including CREATE TABLE."""
        del database
        connection.exec_driver_sql("BEGIN IMMEDIATE")
