"""The floor: the rate of plain driver code that writes and reads the same rows in batches on the same database.

No broker, no protocol, no duplicate detection. One connection of the unmodified driver, the same tables and the same
durability settings as the broker's. A batch is

* for transactions: the half messages are inserted and committed, then the op records and log entries are written, the
  halves deleted, the queue's counter moved and committed, then a lease is written, the messages are read and committed,
  and the lease is removed and committed;
* for ordinary messages: the queue's counter is moved, op records and messages are inserted, and all is committed;
* for Spark: a range of messages is read, or messages are inserted and committed;
* for consumption: a lease is written, a range of messages is read and committed, and the lease is removed and
  committed.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from broker.domain.ids import uuid7
from broker.storage.engine.connection import Database
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from broker.storage.engine.session import Session

SMALLEST_BATCH, LARGEST_BATCH = 100, 500
READ_BATCH = 512
LARGE_READ = 4096
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
_MESSAGE = f"INSERT INTO message ({rows.MESSAGE_COLUMNS}) VALUES "
_LEASE = (
    "INSERT INTO lease (group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner) VALUES "
)


class Floor:
    """Plain driver code on a database with the broker's tables."""

    def __init__(self, url: str, *, quick: bool = False) -> None:
        """Connects; `quick`: rows are parsed by the broker's parser, not by the driver's."""
        self._database = Database(url, quick=quick)
        self._session: Session = self._database.session()
        self._cursor: Any = self._session.connection.cursor()
        self._mark = "?" if self._database.dialect.one_writer else "%s"

    def close(self) -> None:
        """Closes the connection."""
        self._database.release(self._session)
        self._database.close()

    def _transact(self, work: Callable[[], None]) -> None:
        self._session.begin()
        work()
        self._session.commit()

    def _insert(self, head: str, new: Sequence[Sequence[Any]]) -> None:
        row = "(" + ",".join([self._mark] * len(new[0])) + ")"
        self._execute(head + ",".join([row] * len(new)), [value for values in new for value in values])

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._cursor.execute(sql, values or None) if not self._database.dialect.one_writer else self._cursor.execute(
            sql, values
        )


class RangeFloor(Floor):
    """Reads ranges of messages."""

    batch = LARGE_READ

    def measure(self, counts: Mapping[int, int]) -> float:
        """Messages per second: reads queues from their beginning, as many messages as each of them has."""
        start = time.perf_counter()
        for queue_id, count in counts.items():
            for first in range(0, count, self.batch):
                self._take(queue_id, first, min(self.batch, count - first))
        return sum(counts.values()) / (time.perf_counter() - start)

    def _take(self, queue_id: int, first: int, count: int) -> None:
        self._transact(lambda: self._read(queue_id, first, count))

    def _read(self, queue_id: int, first: int, count: int) -> None:
        self._execute(
            f"SELECT {rows.READ_COLUMNS} FROM message WHERE queue_id = {queue_id} AND log_offset >= {first}"
            f" AND log_offset < {first + count} ORDER BY log_offset"
        )
        if len(self._cursor.fetchall()) != count:
            raise RuntimeError("the floor did not read what was written")


class ConsumeFloor(RangeFloor):
    """Reads ranges of messages under leases."""

    batch = READ_BATCH

    def _take(self, queue_id: int, first: int, count: int) -> None:
        self._transact(lambda: self._lease_and_read(queue_id, first, count))
        lease_id = self._lease_id
        self._transact(lambda: self._execute(f"DELETE FROM lease WHERE lease_id = {lease_id}"))

    def _lease_and_read(self, queue_id: int, first: int, count: int) -> None:
        now = time.time_ns() // 1000
        self._insert(_LEASE, [(GROUP_ID, queue_id, first, count, 1, 1, now, "bench")])
        self._lease_id = int(self._cursor.lastrowid)
        self._read(queue_id, first, count)


class WritingFloor(Floor):
    """Writes to a separate queue, on a separate database."""

    def __init__(self, url: str, body: bytes) -> None:
        """Takes the database and the body of every message."""
        super().__init__(url)
        self._body = body
        self._offset = 0
        queue = [(QUEUE_ID, QUEUE_ID, 0, 0, 0)]
        head = "INSERT INTO queue (queue_id, topic_id, queue_no, next_offset, min_offset) VALUES "
        self._transact(lambda: self._insert(head, queue))

    def measure(self, seconds: float, batch: int) -> float:
        """The rate per second over about this time, with this batch size."""
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            first, self._offset = self._offset, self._offset + batch
            self._batch(first, sorted(_new_id() for _ in range(batch)), time.time_ns() // 1000)
            done += batch
        return done / (time.perf_counter() - start)

    def insert_commit_times(self, count: int) -> list[float]:
        """Seconds of single INSERTs of one message, each with its COMMIT."""
        return list(self._single_inserts(time.perf_counter() for _ in range(count)))

    def paced_insert_times(self, count: int, rate: float) -> list[float]:
        """The same at a steady rate: seconds from when each was due to the end of its COMMIT."""
        start = time.perf_counter()
        return list(self._single_inserts(_wait_for(start + index / rate) for index in range(count)))

    def _single_inserts(self, starts: Iterator[float]) -> Iterator[float]:
        now = time.time_ns() // 1000
        for start in starts:
            offset, self._offset = self._offset, self._offset + 1
            row = self._message_row(QUEUE_ID + 1, offset, _new_id(), now)
            self._transact(lambda: self._insert(_MESSAGE, [row]))  # noqa: B023 - runs at once
            yield time.perf_counter() - start
        self._transact(lambda: self._execute(f"DELETE FROM message WHERE queue_id = {QUEUE_ID + 1}"))

    def _message_row(self, queue_id: int, offset: int, message_id: bytes, now: int) -> tuple[Any, ...]:
        body = self._body
        return (queue_id, offset, message_id, 0, body, len(body), None, None, None, None, now, now)

    def _batch(self, first: int, ids: Sequence[bytes], now: int) -> None:
        raise NotImplementedError

    def _move_counter(self, to: int) -> None:
        self._execute(f"UPDATE queue SET next_offset = {to} WHERE queue_id = {QUEUE_ID}")


class SendFloor(WritingFloor):
    """Writes ordinary messages."""

    def _batch(self, first: int, ids: Sequence[bytes], now: int) -> None:
        self._transact(lambda: self._append(first, ids, now))

    def _append(self, first: int, ids: Sequence[bytes], now: int) -> None:
        self._move_counter(first + len(ids))
        ops = [(i, 2, 4, None, 1, 0, now, now, None, f"[[{QUEUE_ID},{first + n}]]") for n, i in enumerate(ids)]
        self._insert(_OP, ops)
        self._insert(_MESSAGE, [self._message_row(QUEUE_ID, first + n, i, now) for n, i in enumerate(ids)])


class TransactionFloor(WritingFloor):
    """Writes, releases and consumes transactions of one message."""

    def _batch(self, first: int, ids: Sequence[bytes], now: int) -> None:
        body, size = self._body, len(self._body)
        halves = [(i, 0, 1, 1, None, body, size, None, None, None, None, now, 1, now, 0) for i in ids]
        self._transact(lambda: self._insert(_HALF, halves))
        self._transact(lambda: self._release(first, ids, now))
        self._transact(lambda: self._read(first, len(ids), now))
        self._transact(lambda: self._execute(f"DELETE FROM lease WHERE group_id = {GROUP_ID}"))

    def _release(self, first: int, ids: Sequence[bytes], now: int) -> None:
        marks = ",".join([self._mark] * len(ids))
        self._move_counter(first + len(ids))
        ops = [(i, 2, 1, 1, 1, 0, now, now, None, f"[[{QUEUE_ID},{first + n}]]") for n, i in enumerate(ids)]
        self._insert(_OP, ops)
        self._execute(_LOG.format(queue=QUEUE_ID, first=first, now=now, ids=marks), ids)
        self._execute(f"DELETE FROM half_message WHERE transaction_id IN ({marks})", ids)

    def _read(self, first: int, count: int, now: int) -> None:
        self._insert(_LEASE, [(GROUP_ID, QUEUE_ID, first, count, 1, 1, now, "bench")])
        self._execute(
            f"SELECT * FROM message WHERE queue_id = {QUEUE_ID} AND log_offset >= {first} AND log_offset <"
            f" {first + count}"
        )
        if len(self._cursor.fetchall()) != count:
            raise RuntimeError("the floor did not read what it wrote")


class FloorRates:
    """Rates of a floor in batches of the number in flight, and in larger ones than the load can reach."""

    def __init__(self, floor: WritingFloor, in_flight: int) -> None:
        """Takes the floor, and the number in flight."""
        self._floor = floor
        self._batches = {"floor": max(SMALLEST_BATCH, min(in_flight, LARGEST_BATCH)), "large_floor": LARGEST_BATCH}
        self._rates: dict[str, list[float]] = {name: [] for name in self._batches}

    def measure(self, seconds: float) -> None:
        """Measures each for about this time."""
        for name, batch in self._batches.items():
            self._rates[name].append(self._floor.measure(seconds, batch))

    def compared_with(self, rate: float) -> dict[str, float]:
        """The rates, and the ratio of another rate to them."""
        floor, large = [sum(rates) / len(rates) for rates in self._rates.values()]
        return {
            "floor_per_s": round(floor, 1),
            "ratio": round(rate / floor, 3),
            "large_floor_per_s": round(large, 1),
            "large_ratio": round(rate / large, 3),
        }


def _new_id() -> bytes:
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def _wait_for(due: float) -> float:
    wait = due - time.perf_counter()
    if wait > 0:
        time.sleep(wait)
    return due


class InsertFloor(WritingFloor):
    """Inserts messages, and nothing else."""

    def write(self, count: int, batch: int) -> None:
        """Inserts so many messages, with one COMMIT for each batch."""
        for _ in range(0, count, batch):
            first, self._offset = self._offset, self._offset + batch
            self._batch(first, [_new_id() for _ in range(batch)], time.time_ns() // 1000)

    def _batch(self, first: int, ids: Sequence[bytes], now: int) -> None:
        new = [self._message_row(QUEUE_ID, offset, own, now) for offset, own in enumerate(ids, first)]
        self._transact(lambda: self._insert(_MESSAGE, new))
