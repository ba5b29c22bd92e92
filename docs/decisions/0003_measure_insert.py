"""Measures what decision 0003 is about: 256 half messages of 1 KiB into MySQL or MariaDB, four ways.

Usage: .venv/bin/python docs/decisions/0003_measure_insert.py mysql://user:password@host:port/an-empty-database [ROUNDS]

The tables are made, and dropped in the end. Every figure is the median of 40 rounds (or ROUNDS): building the
statement, sending it and COMMIT for the first; the processor time of this process for the second.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from broker.domain.check_policy import CheckPolicy
from broker.domain.message import Message
from broker.ports.transactions import Half, PrepareWork
from broker.services.ids import new_id
from broker.storage.engine.connection import Database
from broker.storage.tables.schema import half_message, metadata
from broker.storage.transactions.halves import _COLUMNS, _rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROWS = 256
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


def _batch() -> list[tuple[Any, ...]]:
    work = [PrepareWork(new_id(), 1, [Half(1, None, Message("orders", os.urandom(1024)))]) for _ in range(ROWS)]
    work.sort(key=lambda item: item.transaction_id)
    return [row for item in work for row in _rows(item, 0, CheckPolicy(), {})]


def _measure(name: str, insert: Callable[[Sequence[tuple[Any, ...]]], None]) -> None:
    wall, processor = [], []
    for number in range(ROUNDS + 5):
        rows = _batch()
        started, used = time.perf_counter(), time.process_time()
        insert(rows)
        if number >= 5:
            wall.append((time.perf_counter() - started) * 1000)
            processor.append((time.process_time() - used) * 1000)
    sys.stdout.write(f"{name:<58} {statistics.median(wall):6.1f} ms {statistics.median(processor):6.1f} ms processor\n")


def main() -> None:
    """Measures and prints."""
    database = Database(sys.argv[1])
    engine = database.sqlalchemy_engine()
    metadata.create_all(engine)
    names = [name.strip() for name in _COLUMNS.split(",")]
    text = f"INSERT INTO half_message ({_COLUMNS}) VALUES ({','.join(['%s'] * len(names))})"  # noqa: S608
    try:
        session = database.session()

        def by_session(rows: Sequence[tuple[Any, ...]]) -> None:
            session.insert("half_message", _COLUMNS, rows, keep_existing="transaction_id")
            session.commit()

        def by_driver(rows: Sequence[tuple[Any, ...]]) -> None:
            session.connection.cursor().executemany(text, rows)
            session.connection.commit()

        _measure("Session.insert: literals, one statement", by_session)
        _measure("PyMySQL executemany", by_driver)
        with engine.connect() as connection:

            def by_core(rows: Sequence[tuple[Any, ...]]) -> None:
                connection.execute(sa.insert(half_message), [dict(zip(names, row, strict=True)) for row in rows])
                connection.commit()

            def by_core_values(rows: Sequence[tuple[Any, ...]]) -> None:
                connection.execute(sa.insert(half_message).values([dict(zip(names, r, strict=True)) for r in rows]))
                connection.commit()

            _measure("SQLAlchemy Core, executemany", by_core)
            _measure("SQLAlchemy Core, one insert with many values", by_core_values)
        database.release(session)
    finally:
        metadata.drop_all(engine)
        database.close()


main()
