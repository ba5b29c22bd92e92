"""The log: dense offsets given out under the queue's lock, appending, reading, and where queues begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.topic import ConsumerGroup, QueueState, Topic
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import BrokerError, NotFound
from broker.services.ports import QueueSlice, SendWork
from broker.storage import rows
from broker.storage.session import Session, Statement, marks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.domain.message import LogMessage
    from broker.services.ports import Queue
    from broker.storage.directory import Directory


def take_offsets(session: Session, counts: Mapping[int, int]) -> dict[int, int]:
    """Takes the next offsets of queues; the first of each.

    Locks the queues' rows, in ascending order, until the transaction ends: a reader that sees an offset has seen all
    below it.
    """
    queue_ids = sorted(counts)
    taken = session.together(
        [Statement(session.dialect.take_offsets, (counts[queue_id], queue_id)) for queue_id in queue_ids]
    )
    first = {}
    for queue_id, answer in zip(queue_ids, taken, strict=True):
        if not (answer.rows or answer.changed):
            raise NotFound("The topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topic")
        following = answer.rows[0][0] if session.dialect.embedded else answer.last_id
        first[queue_id] = following - counts[queue_id]
    return first


def send(
    session: Session, work: Sequence[SendWork], now: int, directory: Directory, turn: int
) -> list[tuple[int, int] | BrokerError]:
    """Appends ordinary messages; (queue id, offset) per item. Ids that were sent before answer with their old place."""
    places = _sent_before(session, [item.message_id for item in work])
    topics = directory.by_ids(session, {item.topic_id for item in work})
    new: dict[bytes, tuple[int, SendWork]] = {}
    for item in work:
        if item.message_id in places or item.message_id in new or item.topic_id not in topics:
            continue
        queues = topics[item.topic_id].queue_ids
        new[item.message_id] = (queues[(turn if item.queue_no is None else item.queue_no) % len(queues)], item)
    if new:
        places.update(_append(session, new.values(), now))
    return [
        places[item.message_id]
        if item.message_id in places
        else NotFound("The topic was deleted.", reason="TOPIC_NOT_FOUND", field="topic")
        for item in work
    ]


def _sent_before(session: Session, ids: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
    found = session.fetch_in("SELECT transaction_id, released FROM op_record WHERE transaction_id", ids)
    return {row[0]: rows.decode_released(row[1])[0] for row in found if row[1]}


def _append(session: Session, work: Iterable[tuple[int, SendWork]], now: int) -> dict[bytes, tuple[int, int]]:
    work = list(work)
    counts: dict[int, int] = {}
    for queue_id, _ in work:
        counts[queue_id] = counts.get(queue_id, 0) + 1
    following = take_offsets(session, counts)
    places: dict[bytes, tuple[int, int]] = {}
    messages, ops = [], []
    for queue_id, item in work:
        offset = following[queue_id]
        following[queue_id] = offset + 1
        places[item.message_id] = (queue_id, offset)
        messages.append((queue_id, offset, item.message_id, 0, *rows.content(item.message), now, now))
        ops.append(
            (
                item.message_id,
                int(TransactionState.COMMITTED),
                int(VerdictSource.SEND),
                1,
                0,
                now,
                now,
                rows.encode_released([(queue_id, offset)]),
            )
        )
    session.together(
        [
            *session.insertion(
                "op_record",
                "transaction_id, state, source, half_count, check_count, prepared_at, decided_at, released",
                sorted(ops),
            ),
            *session.insertion("message", rows.MESSAGE_COLUMNS, messages),
        ]
    )
    return places


_SPAN = "FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?"


def total_size(queue_id: int, first: int, count: int) -> Statement:
    """The sum of the sizes of some messages: one row. Range of the primary key."""
    return Statement(f"SELECT SUM(size) {_SPAN}", (queue_id, first, first + count))


def range_of(queue_id: int, first: int, count: int) -> Statement:
    """The messages at [first, first + count) that are still kept, by offset. Range of the primary key."""
    return Statement(f"SELECT {rows.READ_COLUMNS} {_SPAN} ORDER BY log_offset", (queue_id, first, first + count))


def log_messages(topic: str, queue_no: int, found: Iterable[Sequence[Any]]) -> list[LogMessage]:
    """The messages in the rows of `range_of`."""
    return [rows.log_message(topic, queue_no, row) for row in found]


def fitting(session: Session, queue_id: int, first: int, count: int, max_bytes: int) -> int:
    """How many of the offsets from `first` on fit into `max_bytes`; at least one. Range of the primary key.

    The sum of all is asked for first: mostly it fits, and a running sum in the database reads every row four times.
    """
    if (session.together([total_size(queue_id, first, count)])[0].rows[0][0] or 0) <= max_bytes:
        return count
    total = 0
    span = (queue_id, first, first + count)
    for offset, size in session.fetch(f"SELECT log_offset, size {_SPAN} ORDER BY log_offset", span):
        total += size
        if total > max_bytes:
            return max(1, int(offset) - first)
    return count


def read_range(session: Session, topic: str, queue_no: int, queue_id: int, first: int, count: int) -> list[LogMessage]:
    """The messages at [first, first + count) that are still kept, by offset."""
    return log_messages(topic, queue_no, session.together([range_of(queue_id, first, count)])[0].rows)


def read_queue(session: Session, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int) -> QueueSlice:
    """Reads from an offset on, or from the first one kept."""
    queue_id = topic.queue_ids[queue_no]
    row = session.fetch_one("SELECT min_offset, next_offset FROM queue WHERE queue_id = ?", (queue_id,))
    if row is None:
        raise NotFound(f"The topic {topic.name!r} was deleted.", reason="TOPIC_NOT_FOUND", field="topic")
    min_offset, max_offset = row
    first = max(offset, min_offset)
    count = min(limit, max_offset - first)
    if count <= 0:
        return QueueSlice([], min_offset, max_offset)
    count = fitting(session, queue_id, first, count, max_bytes)
    return QueueSlice(read_range(session, topic.name, queue_no, queue_id, first, count), min_offset, max_offset)


def queue_states(session: Session, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
    """Where the queues of a topic begin and end, and how far a group has come."""
    states = {
        row[0]: row[1:]
        for row in session.fetch(
            "SELECT queue_id, min_offset, next_offset FROM queue WHERE topic_id = ?", (topic.topic_id,)
        )
    }
    progress = group_marks(session, group, topic.queue_ids) if group else {}
    result = []
    for number, queue_id in enumerate(topic.queue_ids):
        low, high = states.get(queue_id, (0, 0))
        following, committed, in_flight = progress.get(queue_id, (low, low, 0))
        result.append(QueueState(topic.name, number, low, high, following, max(committed, low), in_flight))
    return result


def group_marks(session: Session, group: ConsumerGroup, queue_ids: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Per queue a group joined: the next offset to hand out, the first one not handled, and how many are in flight."""
    marks_of = {
        row[0]: (row[1], row[1], 0)
        for row in session.fetch(
            f"SELECT queue_id, next_offset FROM group_progress WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
            (group.group_id, *queue_ids),
        )
    }
    # Uses lease_queue. Leases are few: one per batch in flight, one per message waiting for a retry.
    for row in session.fetch(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
        (group.group_id, *queue_ids),
    ):
        lease = rows.lease_from_row(row)
        open_offsets = list(lease.open_offsets())
        following, committed, in_flight = marks_of[lease.queue_id]
        marks_of[lease.queue_id] = (following, min([committed, *open_offsets]), in_flight + len(open_offsets))
    return marks_of


def queue_heads(session: Session) -> dict[Queue, int]:
    """Where each queue ends. Reads the small table `queue`."""
    found = session.fetch("SELECT topic_id, queue_id, next_offset FROM queue")
    return {(topic_id, queue_id): head for topic_id, queue_id, head in found}
