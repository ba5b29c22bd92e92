"""The floor: what the same database gives to plain driver code that writes and reads the same rows in batches.

No broker, no protocol, no look-ups for repetitions: per batch the half messages are inserted and committed, then the op
records and log entries are written, the halves deleted, the queue's counter moved and committed, then a lease is
written, the messages are read and committed, and the lease is removed and committed. One connection, the same tables
and the same durability settings as the broker's.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.domain.ids import uuid7
from broker.storage.engine import Database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.session import Session

SMALLEST_BATCH, LARGEST_BATCH = 100, 500
QUEUE_ID = 1_000_000
GROUP_ID = 1_000_000

_HALF = (
    "INSERT INTO half_message (transaction_id, position, producer_group_id, topic_id, queue_no, body, size, tag,"
    " message_keys, message_group, properties, born_at, check_state, check_due_at, check_count) VALUES "
)
_OP = (
    "INSERT INTO op_record (transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at,"
    " decided_at, reason, released) VALUES "
)
_LOG = (
    "INSERT INTO message (queue_id, log_offset, transaction_id, position, body, size, tag, message_keys,"
    " message_group, properties, born_at, stored_at) SELECT {queue}, {first} + ROW_NUMBER() OVER (ORDER BY"
    " transaction_id) - 1, transaction_id, position, body, size, tag, message_keys, message_group, properties, born_at,"
    " {now} FROM half_message WHERE transaction_id IN ({ids})"
)


@dataclass(frozen=True)
class FloorFigures:
    """Transactions per second in batches, and the median time of a bare INSERT and COMMIT (seconds)."""

    transactions_per_s: float
    insert_commit_p50: float


class Floor:
    """Runs the floor on a database that has the broker's tables."""

    def __init__(self, url: str, body: bytes) -> None:
        """Takes the database and the body of every message."""
        self._database = Database(url)
        self._session: Session = self._database.session()
        self._connection: Any = self._session.connection
        self._cursor = self._connection.cursor()
        self._mark = "?" if self._database.dialect.embedded else "%s"
        self._body = body
        self._offset = 0
        self._transact(
            lambda: self._run(
                "INSERT INTO queue (queue_id, topic_id, queue_no, next_offset, min_offset) VALUES ",
                [(QUEUE_ID, QUEUE_ID, 0, 0, 0)],
            )
        )

    def measure(self, seconds: float, batch: int) -> float:
        """Transactions per second over about this time, so many in a batch."""
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self._batch(batch)
            done += batch
        return done / (time.perf_counter() - start)

    def insert_commit_times(self, count: int) -> list[float]:
        """Seconds of single INSERTs of one message, each with its COMMIT."""
        times = []
        for offset in range(count):
            row = [self._message_row(2_000_000_000 + offset)]
            start = time.perf_counter()
            self._transact(lambda: self._run("INSERT INTO message VALUES ", row))  # noqa: B023 - runs at once
            times.append(time.perf_counter() - start)
        self._transact(lambda: self._execute(f"DELETE FROM message WHERE queue_id = {QUEUE_ID + 1}"))
        return times

    def close(self) -> None:
        """Gives the connection back."""
        self._database.release(self._session)
        self._database.close()

    def _message_row(self, offset: int) -> tuple[Any, ...]:
        now = time.time_ns() // 1000
        body = self._body
        return (QUEUE_ID + 1, offset, _new_id(), 0, body, len(body), None, None, None, None, now, now)

    def _batch(self, count: int) -> None:
        now = time.time_ns() // 1000
        first, self._offset = self._offset, self._offset + count
        ids = sorted(_new_id() for _ in range(count))
        body, size = self._body, len(self._body)
        halves = [(i, 0, 1, 1, None, body, size, None, None, None, None, now, 1, now, 0) for i in ids]
        self._transact(lambda: self._run(_HALF, halves))
        self._transact(lambda: self._release(ids, first, now))
        self._transact(lambda: self._read(first, count, now))
        self._transact(lambda: self._execute(f"DELETE FROM lease WHERE group_id = {GROUP_ID}"))

    def _release(self, ids: Sequence[bytes], first: int, now: int) -> None:
        marks = ",".join([self._mark] * len(ids))
        self._execute(f"UPDATE queue SET next_offset = {first + len(ids)} WHERE queue_id = {QUEUE_ID}")
        ops = [(i, 2, 1, 1, 1, 0, now, now, None, f"[[{QUEUE_ID},{first + n}]]") for n, i in enumerate(ids)]
        self._run(_OP, ops)
        self._execute(_LOG.format(queue=QUEUE_ID, first=first, now=now, ids=marks), ids)
        self._execute(f"DELETE FROM half_message WHERE transaction_id IN ({marks})", ids)

    def _read(self, first: int, count: int, now: int) -> None:
        lease = (GROUP_ID, QUEUE_ID, first, count, 1, 1, now)
        self._run(
            "INSERT INTO lease (group_id, queue_id, first_offset, message_count, token, attempt, available_at) VALUES ",
            [lease],
        )
        self._execute(
            f"SELECT * FROM message WHERE queue_id = {QUEUE_ID} AND log_offset >= {first} AND log_offset <"
            f" {first + count}"
        )
        if len(self._cursor.fetchall()) != count:
            raise RuntimeError("the floor did not read what it wrote")

    def _transact(self, work: Any) -> None:
        self._session.begin()
        work()
        self._session.commit()

    def _run(self, head: str, rows: Sequence[Sequence[Any]]) -> None:
        row = "(" + ",".join([self._mark] * len(rows[0])) + ")"
        self._execute(head + ",".join([row] * len(rows)), [value for values in rows for value in values])

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._cursor.execute(sql, values or None) if not self._database.dialect.embedded else self._cursor.execute(
            sql, values
        )


def _new_id() -> bytes:
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def median(times: Sequence[float]) -> float:
    """The median of some times."""
    return statistics.median(times)
