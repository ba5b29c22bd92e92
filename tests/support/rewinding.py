"""A database that is put back to what it held at a moment, as by a restore; by its rows, on every kind of database."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from broker.storage.engine.statements import marks
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

NUMBERED = ("lease", "topic", "queue", "consumer_group", "sink")
"""Tables whose next number is part of a backup."""


class Moment:
    """What a database holds now."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with _transaction(database) as session:
            self._rows = {
                table: session.fetch(f"SELECT {', '.join(_columns(table))} FROM {table}") for table in metadata.tables
            }
            self._next = {table: _next_number(session, table) for table in NUMBERED}

    def restore(self) -> None:
        """Puts it back, whoever works on it."""
        with _transaction(self._database) as session:
            for table, rows in self._rows.items():
                names = _columns(table)
                session.run(f"DELETE FROM {table}")
                for row in rows:
                    session.run(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks(names)})", row)
        with _transaction(self._database) as session:
            for table, number in self._next.items():
                _set_next_number(session, table, number)


def count_from_one(database: Database) -> None:
    """Has the numbers of leases begin behind those that are there; a server keeps them when rows are deleted."""
    if database.dialect.name != "sqlite":
        with _transaction(database) as session:
            _set_next_number(session, "lease", 1)


def _columns(table: str) -> list[str]:
    return [column.name for column in metadata.tables[table].columns]


@contextmanager
def _transaction(database: Database) -> Iterator[Session]:
    session = database.session()
    try:
        session.begin()
        yield session
        session.commit()
    except BaseException:
        database.discard(session)
        raise
    database.release(session)


def _next_number(session: Session, table: str) -> int:
    if session.dialect.name == "sqlite":
        row = session.fetch_one("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return 1 if row is None else int(row[0]) + 1
    found = re.search(r"AUTO_INCREMENT=(\d+)", session.fetch(f"SHOW CREATE TABLE {table}")[0][1])
    return int(found.group(1)) if found else 1


def _set_next_number(session: Session, table: str, number: int) -> None:
    if session.dialect.name == "sqlite":
        session.run("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number - 1, table))
    else:
        session.run(f"ALTER TABLE {table} AUTO_INCREMENT = {number}")
