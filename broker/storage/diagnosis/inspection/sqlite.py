"""SQLite."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import sqlite

from broker.storage.diagnosis.inspection.base import (
    PRIMARY,
    Inspection,
    PlanStep,
    StoredColumn,
    StoredIndex,
    StoredTable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Row
    from broker.storage.tables.naming import TableNames

_DIALECT = sqlite.dialect()
_STEP = re.compile(r"(SCAN|SEARCH) (?:TABLE )?(\w+)(?: AS (\w+))?(.*)")
_STEPS_OF_LIMIT = 10_000
"""Of SQLite's virtual machine, between two looks at the clock."""


class SQLiteInspection(Inspection):
    """SQLite: its schema and pragmas."""

    def limit(self, session: Session, seconds: float) -> None:
        """Ends what runs beyond that time, counted from now."""
        until = time.monotonic() + seconds
        driver = getattr(session.connection, "dbapi_connection", session.connection)
        driver.set_progress_handler(lambda: time.monotonic() > until, _STEPS_OF_LIMIT)

    def is_limit(self, error: BaseException) -> bool:
        """Ended by `limit`."""
        return isinstance(error, sqlite3.OperationalError) and "interrupted" in str(error)

    def has_table(self, session: Session, name: str) -> bool:
        """By the schema's table."""
        return session.dialect.has_table(session, name)

    def log_bytes(self, session: Session) -> int:
        """Size of the write-ahead log; 0 if there is none."""
        file = session.fetch("PRAGMA database_list")[0][2]
        log = Path(f"{file}-wal")
        return log.stat().st_size if log.exists() else 0

    def journal_mode(self, session: Session) -> str:
        """How the file is kept consistent, such as wal."""
        return str(session.fetch("PRAGMA journal_mode")[0][0])

    def tables(self, session: Session, names: Sequence[str]) -> dict[str, StoredTable]:
        """By pragmas."""
        there = {row[0] for row in session.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")}
        found = {}
        for name in names:
            if name not in there:
                continue
            table = found[name] = StoredTable()
            keys = []
            for _, column, kind, not_null, default, key in session.fetch(f"PRAGMA table_info({name})"):
                table.columns[column] = StoredColumn(kind.lower(), not not_null and not key, _default(default))
                if key:
                    keys.append((key, column))
            table.indexes[PRIMARY] = StoredIndex(tuple(column for _, column in sorted(keys)), True)
            for _, index, unique, origin, *_ in session.fetch(f"PRAGMA index_list({name})"):
                columns = tuple(row[2] for row in session.fetch(f"PRAGMA index_info({index})"))
                if origin != "pk":
                    table.indexes[index] = StoredIndex(columns, bool(unique))
        return found

    def views(self, session: Session, names: Sequence[str]) -> set[str]:
        """By the schema's table."""
        there = {row[0] for row in session.fetch("SELECT name FROM sqlite_master WHERE type = 'view'")}
        return there & set(names)

    def plan(self, session: Session, sql: str, values: Row) -> list[PlanStep]:
        """By EXPLAIN QUERY PLAN."""
        steps = []
        for row in session.fetch(f"EXPLAIN QUERY PLAN {sql}", values):
            if found := _STEP.match(row[3]):
                how, table, alias, rest = found.groups()
                index = re.search(r"INDEX (\w+)", rest)
                if "PRIMARY KEY" in rest or (index and index[1].startswith("sqlite_autoindex")):
                    used: str | None = PRIMARY
                else:
                    used = index[1] if index else None
                steps.append(PlanStep(alias or table, used, how == "SCAN"))
        return steps

    def type_of(self, column: sa.Column[Any]) -> str:
        """The type's name in CREATE TABLE."""
        return column.type.compile(dialect=_DIALECT).lower()

    def column_repair(self, table: str, column: sa.Column[Any], *, missing: bool) -> str:
        """SQLite cannot change a column."""
        del column, missing
        return f"restore the table {table} from a backup: SQLite cannot change a column"

    def index_name(self, names: TableNames, name: str) -> str:
        """All tables of a file share one namespace of indexes."""
        return names.table(name)


def _default(text: str | None) -> str | None:
    return None if text is None or text == "NULL" else text.strip("'")
