"""Records which of a numbered series of batches a database has applied, in the transaction that applies it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CREATE_BATCH_APPLIED", "Connection", "apply_numbered"]

CREATE_BATCH_APPLIED = (
    "CREATE TABLE IF NOT EXISTS batch_applied"
    " (name VARCHAR(100) PRIMARY KEY, query_id VARCHAR(100) NOT NULL, number BIGINT NOT NULL)"
)
"""The statement that creates the table: one row per name, with its last batch."""

_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Connection(Protocol):
    """A DB-API (PEP 249) connection."""

    def cursor(self) -> Any:
        """Creates a cursor."""

    def commit(self) -> object:
        """Commits the transaction."""

    def rollback(self) -> object:
        """Rolls the transaction back."""


def apply_numbered(
    connection: Connection,
    apply: Callable[[Any], object],
    *,
    name: str,
    query_id: str,
    number: int,
    take_over: bool = False,
    paramstyle: str | None = None,
) -> bool:
    """Calls `apply` and records the number, in one transaction, unless this or a later number is recorded already.

    The number is written first, so two that apply the same batch wait for each other, and one of them finds it applied.

    Args:
        connection: To the database with the table `batch_applied`; in no transaction, and not in autocommit mode.
        apply: Takes a cursor and writes the rows. It neither commits, nor runs statements that commit implicitly.
        name: Name under which numbers are recorded; 100 characters at most.
        query_id: Source of the numbers.
        number: Number of the batch; later ones have larger numbers.
        take_over: Whether to take over a name of another query.
        paramstyle: The driver's parameter style, if its module does not declare it: qmark, format or pyformat.

    Returns:
        Whether it was applied now.

    Raises:
        ConfigurationError: The name is another query's, the connection is in autocommit mode, or its parameter style is
            unknown.
    """
    mark = _mark_of(connection, paramstyle)
    if _commits_by_itself(connection):
        msg = "the connection commits each statement by itself; turn autocommit off: rows and note belong together"
        raise ConfigurationError(msg, field="connection")
    cursor = connection.cursor()
    try:
        new = _note(_Marked(cursor, mark), name, query_id, number, take_over=take_over)
        if new:
            apply(cursor)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        cursor.close()
    return new


class _Marked:
    """A cursor for statements that mark parameters by ``?``."""

    def __init__(self, cursor: Any, mark: str) -> None:
        self._cursor = cursor
        self._mark = mark

    def run(self, statement: str, *values: object) -> int:
        self._cursor.execute(statement.replace("?", self._mark), values)
        return int(self._cursor.rowcount)

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        self.run(statement, *values)
        row = self._cursor.fetchone()
        # Cursors of some drivers return rows by name.
        return tuple(row.values()) if isinstance(row, dict) else row


def _note(cursor: _Marked, name: str, query_id: str, number: int, *, take_over: bool) -> bool:
    # An UPDATE sees the latest committed row and locks it, whatever the isolation level.
    changed = "UPDATE batch_applied SET number = ? WHERE name = ? AND query_id = ? AND number < ?"
    if cursor.run(changed, number, name, query_id, number):
        return True
    row = cursor.row("SELECT query_id, number FROM batch_applied WHERE name = ?", name)
    if row is None:
        cursor.run("INSERT INTO batch_applied (name, query_id, number) VALUES (?, ?, ?)", name, query_id, number)
        return True
    if row[0] == query_id:
        return False
    if not take_over:
        msg = (
            f"the name {name!r} belongs to the query {row[0]}, which applied batch {row[1]}; this is the query"
            f" {query_id}, which would repeat or skip some. Was the checkpoint deleted? Give another name, or take"
            " this one over (on_checkpoint_reset='continue')"
        )
        raise ConfigurationError(msg, field="name")
    taken = "UPDATE batch_applied SET query_id = ?, number = ? WHERE name = ? AND query_id = ?"
    return cursor.run(taken, query_id, number, name, row[0]) > 0


def _mark_of(connection: Connection, paramstyle: str | None) -> str:
    module = type(connection).__module__
    while paramstyle is None and module:
        paramstyle = getattr(sys.modules.get(module), "paramstyle", None)
        module = module.rpartition(".")[0]
    mark = _MARKS.get(paramstyle or "")
    if mark is None:
        msg = f"how {type(connection).__name__} marks parameters is {paramstyle}; give qmark, format or pyformat"
        raise ConfigurationError(msg, field="paramstyle")
    return mark


def _commits_by_itself(connection: Any) -> bool:
    # Drivers of MySQL and MariaDB have a method, most others an attribute; sqlite3's older one is different.
    if hasattr(connection, "get_autocommit"):
        return bool(connection.get_autocommit())
    autocommit = getattr(connection, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    return getattr(connection, "isolation_level", "") is None
