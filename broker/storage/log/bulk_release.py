"""Releases whole transactions of an epoch: the database copies each by one statement, and offsets follow positions.

Suitable transactions are determined before any queue is locked. While queues are locked, the only work per message is
the database's copy and a few characters in the op record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.place import InLog
from broker.domain.transaction import TransactionState, VerdictSource
from broker.storage.engine.statements import Statement
from broker.storage.log.offsets import take_offsets
from broker.storage.log.release_plan import INTO_LOG
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.ports.epochs import EpochCommitted
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

LOOKED_AT_ONCE = 64
"""Transactions per statement, which reads all their rows."""

_SPECIAL = (
    "queue_no IS NOT NULL OR priority <> 0 OR deliver_at IS NOT NULL OR message_keys IS NOT NULL"
    " OR dedup_hash IS NOT NULL OR check_state <> 0"
)
_COPY = (
    f"{INTO_LOG} SELECT ?, ? + position, transaction_id, position, {rows.CONTENT}, born_at, ? FROM half_message"
    " WHERE transaction_id = ?"
)
_OP_COLUMNS = (
    "transaction_id, state, source, producer_group_id, half_count, check_count, prepared_at, decided_at, released"
)


class Shape(NamedTuple):
    """Data needed to release a transaction as a whole."""

    topic_id: int
    messages: int
    size: int
    producer_group_id: int
    born_at: int


def shapes(session: Session, transaction_ids: Sequence[bytes]) -> dict[bytes, Shape]:
    """The transactions whose messages can be copied to one queue without examining each of them.

    They have one topic, and no message has a fixed queue, a priority, a delivery time, keys or a dedup_key. Ranges of
    the primary key.
    """
    found: dict[bytes, Shape] = {}
    for start in range(0, len(transaction_ids), LOOKED_AT_ONCE):
        some = sorted(transaction_ids[start : start + LOOKED_AT_ONCE])
        of_halves = session.fetch_in(
            "SELECT transaction_id, MIN(topic_id), MAX(topic_id), COUNT(*), MAX(position), SUM(size),"
            f" MIN(producer_group_id), MIN(born_at), SUM(CASE WHEN {_SPECIAL} THEN 1 ELSE 0 END)"
            f" FROM half_message{session.dialect.by_key} WHERE transaction_id",
            some,
            " GROUP BY transaction_id",
        )
        decided = {
            row[0] for row in session.fetch_in("SELECT transaction_id FROM op_record WHERE transaction_id", some)
        }
        for own, topic_id, last_topic, count, last, size, group_id, born_at, special in of_halves:
            if topic_id == last_topic and last == count - 1 and not special and own not in decided:
                found[own] = Shape(topic_id, count, int(size), group_id, born_at)
    return found


def release(
    session: Session,
    transactions: Mapping[bytes, Shape],
    now: int,
    directory: Directory,
    rotation: int,
    done: EpochCommitted,
) -> bool:
    """Releases transactions in order, whose rows are locked; returns whether their topics still exist.

    Each topic's messages go to one of its queues, which stay locked.
    """
    topics = directory.by_ids(session, {shape.topic_id for shape in transactions.values()})
    if any(shape.topic_id not in topics for shape in transactions.values()):
        return False
    queue_of = {topic_id: topic.choose_queue(None, 0, rotation) for topic_id, topic in topics.items()}
    wanted: dict[int, tuple[int, int]] = {}
    for shape in transactions.values():
        messages, size = wanted.get(queue_of[shape.topic_id], (0, 0))
        wanted[queue_of[shape.topic_id]] = (messages + shape.messages, size + shape.size)
    following = take_offsets(session, wanted)
    state, source = int(TransactionState.COMMITTED), int(VerdictSource.SINK)
    ops, copies = [], []
    for own, shape in transactions.items():
        queue_id = queue_of[shape.topic_id]
        first = following[queue_id]
        end = following[queue_id] = first + shape.messages
        released = rows.encode_released([InLog(queue_id, offset) for offset in range(first, end)])
        ops.append((own, state, source, shape.producer_group_id, shape.messages, 0, shape.born_at, now, released))
        copies.append(Statement(_COPY, (queue_id, first, now, own)))
        done.messages += shape.messages
    records = session.insertion("op_record", _OP_COLUMNS, sorted(ops))
    dropped = [Statement("DELETE FROM half_message WHERE transaction_id = ?", (own,)) for own in sorted(transactions)]
    answers = session.execute_all([*records, *copies, *dropped])[len(records) :]
    copied, gone = (sum(each.changed for each in some) for some in (answers[: len(copies)], answers[len(copies) :]))
    count = sum(shape.messages for shape in transactions.values())
    if (copied, gone) != (count, count):
        raise RuntimeError(f"released {copied} and dropped {gone} of {count} half messages of an epoch")
    for topic_id, queue_id in queue_of.items():
        done.end_offsets[topic_id, queue_id] = following[queue_id]
    return True
