"""Fills a broker's tables with a long past, by INSERT ... SELECT: retained messages and pending transactions.

What is there afterwards, as brokers would have left it in a day: messages in the order of their times in the queues of
one topic, every second one with a business key; an op record for each; records of the deliveries; consumer groups with
their progress, the ends of the queues, and transactions without a verdict of several producer groups, of which some
wait for the answer to their last check and some are parked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.keys import key_hash
from broker.domain.transaction import TransactionState, VerdictSource
from broker.ports.queries import TimelineKind
from broker.storage.tables import rows
from halfmq_cli.bench.load import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.storage.engine.session import Session
    from halfmq_cli.bench.bare_storage import BareStorage

CHUNK = 100_000
"""Rows of one INSERT; a multiple of the number of queues."""
SPAN = 24 * 3600 * 1_000_000
"""Microseconds of the past."""
KEYED = 2
"""One of so many messages has a business key."""
DELIVERED_TOGETHER = 256
GROUPS = 10
"""Producer groups with pending transactions, and consumer groups that have read everything."""
PARKED_SHARE, LAST_CHECK_SHARE = 101, 53
"""One of so many pending transactions is parked, or waits for the answer to its last check; of all groups."""
NEXT_CHECK = 3600 * 1_000_000
"""Microseconds until the first check of a pending transaction is due; later than any measurement."""

_NUMBERS = "bench_number"
_MESSAGE = f"INSERT INTO message ({rows.MESSAGE_COLUMNS}) SELECT "
_OP = (
    "INSERT INTO op_record (transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at,"
    " decided_at, released) SELECT "
)
_HALF = (
    "INSERT INTO half_message (transaction_id, position, producer_group_id, topic_id, body, size, born_at, check_state,"
    " check_due_at, check_count, parked_at) SELECT "
)
_EVENT = (
    "INSERT INTO delivery_event (queue_id, first_offset, message_count, group_id, kind, attempt, client_id,"
    " happened_at) SELECT "
)


@dataclass(frozen=True, slots=True)
class Past:
    """A past that a database was filled with.

    Attributes:
        retained: messages, each with an op record.
        pending: transactions without a verdict.
        began: time of the first message, in microseconds.
        step: microseconds between two messages.
    """

    retained: int
    pending: int
    began: int
    step: int

    @classmethod
    def of(cls, retained: int, pending: int, step: int) -> Past:
        """A past that ends now, and has a message every `step` microseconds."""
        return cls(retained, pending, time.time_ns() // 1000 - retained * step, step)

    def time_of(self, number: int) -> int:
        """When a message was stored, in microseconds."""
        return self.began + number * self.step

    def id_of(self, number: int) -> bytes:
        """The id of a message's transaction: the time comes first, as in those that brokers make."""
        return bytes.fromhex(self._head(number - number % CHUNK)) + _tail(number % CHUNK)

    def _head(self, first: int) -> str:
        return f"{self.time_of(first) // 1000:012x}"

    def key_of(self, number: int) -> str:
        """The business key of a message, if it has one."""
        return f"past-{number}"

    def fill(self, bare: BareStorage, groups: list[int], producer_groups: list[int]) -> None:
        """Fills the tables of a storage that has nothing yet; its groups have read everything afterwards.

        Args:
            bare: the storage.
            groups: ids of the consumer groups.
            producer_groups: ids of the producer groups of pending transactions.
        """
        topic_id, queue_ids = bare.topic.topic_id, bare.topic.queue_ids
        session = bare.database.session()
        body = bare.message().body
        self._make_numbers(session)
        try:
            for first, count in _chunks(self.retained):
                session.begin()
                self._add_messages(session, queue_ids, first, count, body)
                self._add_ops(session, queue_ids, first, count)
                self._add_events(session, queue_ids, groups[0], first, count)
                self._add_keys(session, topic_id, queue_ids, range(first, first + count, KEYED))
                session.commit()
            for first, count in _chunks(self.pending):
                session.begin()
                self._add_halves(session, topic_id, producer_groups, first, count, body)
                session.commit()
        finally:
            session.run(f"DROP TABLE {_NUMBERS}")
        session.begin()
        for place, queue_id in enumerate(queue_ids):
            end = len(range(place, self.retained, QUEUES))
            session.run(
                "UPDATE queue SET next_offset = ?, stored_bytes = ? WHERE queue_id = ?",
                (end, end * len(body), queue_id),
            )
            session.run("UPDATE group_progress SET next_offset = ? WHERE queue_id = ?", (end, queue_id))
        session.commit()
        bare.database.release(session)

    def _make_numbers(self, session: Session) -> None:
        """Numbers of a chunk, each with a queue, the place there, and the end of an id."""
        session.run(
            f"CREATE TABLE {_NUMBERS} (n INTEGER PRIMARY KEY, place INTEGER NOT NULL, round INTEGER NOT NULL,"
            " tail BINARY(10) NOT NULL)"
        )
        session.begin()
        numbers = range(min(CHUNK, max(self.retained, self.pending)))
        session.insert(_NUMBERS, "n, place, round, tail", [(n, n % QUEUES, n // QUEUES, _tail(n)) for n in numbers])
        session.commit()

    def _add_messages(self, session: Session, queue_ids: tuple[int, ...], first: int, count: int, body: bytes) -> None:
        own_id = _joined(session, f"x'{self._head(first)}'", "tail", binary=True)
        keys = _joined(session, "'[\"past-'", f"{first} + n", "'\"]'")
        for place, queue_id in enumerate(queue_ids):
            stored_at = f"{self.time_of(first)} + n * {self.step}"
            session.run(
                f"{_MESSAGE} {queue_id}, {first // QUEUES} + round, {own_id}, 0, ?, {len(body)}, NULL,"
                f" CASE WHEN n % {KEYED} = 0 THEN {keys} END, NULL, NULL, {stored_at}, {stored_at} FROM {_NUMBERS}"
                f" WHERE n < {count} AND place = {place} ORDER BY n",
                (body,),
            )

    def _add_ops(self, session: Session, queue_ids: tuple[int, ...], first: int, count: int) -> None:
        own_id = _joined(session, f"x'{self._head(first)}'", "tail", binary=True)
        queue = "CASE place " + " ".join(f"WHEN {n} THEN {each}" for n, each in enumerate(queue_ids)) + " END"
        released = _joined(session, "'[['", queue, "','", f"{first // QUEUES} + round", "']]'")
        stored_at = f"{self.time_of(first)} + n * {self.step}"
        session.run(
            f"{_OP} {own_id}, {int(TransactionState.COMMITTED)}, {int(VerdictSource.PRODUCER)}, 1, 1, 0, {stored_at},"
            f" {stored_at}, {released} FROM {_NUMBERS} WHERE n < {count} ORDER BY n"
        )

    def _add_events(self, session: Session, queue_ids: tuple[int, ...], group_id: int, first: int, count: int) -> None:
        for place, queue_id in enumerate(queue_ids):
            for kind in (TimelineKind.DELIVERED, TimelineKind.ACKED):
                session.run(
                    f"{_EVENT} {queue_id}, {first // QUEUES} + round, {DELIVERED_TOGETHER}, {group_id}, {int(kind)}, 1,"
                    f" 'bench', {self.time_of(first)} + n * {self.step} FROM {_NUMBERS} WHERE n < {count}"
                    f" AND place = {place} AND round % {DELIVERED_TOGETHER} = 0 ORDER BY n"
                )

    def _add_keys(self, session: Session, topic_id: int, queue_ids: tuple[int, ...], numbers: range) -> None:
        """Not in the order of the whole index, whose pages would be fuller than those of any broker."""
        new = [(topic_id, key_hash(self.key_of(n)), queue_ids[n % QUEUES], n // QUEUES) for n in numbers]
        session.insert("message_key", "topic_id, key_hash, queue_id, log_offset", sorted(new))

    def _add_halves(
        self, session: Session, topic_id: int, producer_groups: list[int], first: int, count: int, body: bytes
    ) -> None:
        # Half messages of a chunk have another first part than its op records: an op record would decide them.
        step = self.retained * self.step // self.pending
        began = self.began + first * step
        own_id = _joined(session, f"x'{began // 1000 + 1:012x}'", "tail", binary=True)
        count_of = len(producer_groups)
        group = f"CASE n % {count_of} " + " ".join(f"WHEN {n} THEN {each}" for n, each in enumerate(producer_groups))
        born_at = f"{began} + n * {step}"
        last = f"n % {LAST_CHECK_SHARE} = 0"
        parked = f"n % {PARKED_SHARE} = 0"
        session.run(
            f"{_HALF} {own_id}, 0, {group} END, {topic_id}, ?, {len(body)}, {born_at},"
            f" CASE WHEN {parked} THEN {rows.PARKED} WHEN {last} THEN {rows.LAST_CHECK_SENT} ELSE {rows.TO_CHECK} END,"
            f" CASE WHEN {parked} THEN NULL ELSE {born_at} + {SPAN + NEXT_CHECK} END, 1,"
            f" CASE WHEN {parked} THEN {born_at} END FROM {_NUMBERS} WHERE n < {count} ORDER BY n",
            (body,),
        )


def _tail(number: int) -> bytes:
    return bytes.fromhex(f"70008000{number:012x}")


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    """The first number of each chunk, and how many it has."""
    for first in range(0, count, CHUNK):
        yield first, min(CHUNK, count - first)


def _joined(session: Session, *parts: str, binary: bool = False) -> str:
    """An expression that joins texts, or bytes."""
    if not session.dialect.one_writer:
        return f"CONCAT({', '.join(parts)})"
    joined = " || ".join(f"({part})" for part in parts)
    return f"CAST({joined} AS BLOB)" if binary else joined
