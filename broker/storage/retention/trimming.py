"""Deletes the heads of queues and old op records, in small batches by primary key, by one broker at a time."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, NamedTuple

from broker.ports.upkeep import ToTrim
from broker.storage.catalog.directory import TOPIC_COLUMNS
from broker.storage.catalog.gaps import gaps_since
from broker.storage.engine.session import StartOver
from broker.storage.engine.statements import Statement
from broker.storage.groups.progress import first_unread
from broker.storage.log import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

CHUNK = 1000
_LEAST_OF_QUEUE = 16


class OldMessage(NamedTuple):
    """A message at the head of a queue, without its content."""

    offset: int
    stored_at: int
    size: int
    message_keys: str | None


def oldest_messages(session: Session, queue_id: int, first: int, limit: int) -> list[OldMessage]:
    """The first messages of a queue. Range of the primary key, from the saved lower bound on."""
    found = session.fetch(
        "SELECT log_offset, stored_at, size, message_keys FROM message WHERE queue_id = ? AND log_offset >= ?"
        " ORDER BY log_offset LIMIT ?",
        (queue_id, first, limit),
    )
    return [OldMessage(*row) for row in found]


def _unless_unread(session: Session, queue_id: int, messages: list[OldMessage]) -> list[OldMessage]:
    """The first messages of a queue that no group needs to keep."""
    unread = first_unread(session, queue_id)
    return messages if unread is None else [message for message in messages if message.offset < unread]


def drop_oldest(
    session: Session, topic_id: int, queue_id: int, first: int, messages: Sequence[OldMessage], *, deleted: bool = False
) -> None:
    """Deletes the messages from the queue's lower bound `first` on, with their keys and records.

    Args:
        session: a transaction.
        topic_id: the topic.
        queue_id: the queue.
        first: its lower bound.
        messages: the first messages of the queue.
        deleted: of a deleted topic; otherwise it may not be deleted, nor moving to another cell.

    Raises:
        StartOver: another broker moved the bound meanwhile, or the topic was deleted or moved.
    """
    end = messages[-1].offset + 1
    entries = [
        entry
        for message in messages
        for entry in keys.stored_entries(topic_id, queue_id, message.offset, message.message_keys)
    ]
    session.run("DELETE FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?", (queue_id, first, end))
    # By primary key, for redriven dead letters.
    redriven = Statement("DELETE FROM redriven WHERE queue_id = ? AND log_offset < ?", (queue_id, end))
    session.execute_all([*keys.deletion(session, entries), redriven])
    # Last, because appends to the queue wait from here on.
    moved = session.run(
        "UPDATE queue SET min_offset = ?, stored_bytes = stored_bytes - ? WHERE queue_id = ? AND min_offset = ?"
        f" AND deleted_at IS {'NOT ' if deleted else ''}NULL",
        (end, sum(message.size for message in messages), queue_id, first),
    )
    if not moved:
        raise StartOver


def to_trim(session: Session, after: int, limit: int, now: int, directory: Directory) -> ToTrim:
    """What has to be deleted of the topics behind an id: two reads for all of them, not a transaction for each queue.

    A first message that is not at the saved lower bound is behind a gap that a restore left: it is looked at. By the
    primary key of topic, queue_of_topic, and for queues with messages by the primary key of message.
    """
    dialect = session.dialect
    further = session.fetch(
        "SELECT topic_id FROM topic WHERE topic_id > ? ORDER BY topic_id LIMIT 1 OFFSET ?", (after, limit - 1)
    )
    last = int(further[0][0]) if further else None
    where = "own.topic_id > ? AND own.deleted_at IS NULL" + (" AND own.topic_id <= ?" if last else "")
    some = (after,) if last is None else (after, last)
    joined = (
        f"FROM topic own {dialect.joined_to} queue q{dialect.by_index('queue_of_topic')} ON q.topic_id = own.topic_id"
    )
    expired = session.fetch(
        f"SELECT q.topic_id, q.queue_id {joined} LEFT JOIN message m{dialect.by_key}"
        f" ON m.queue_id = q.queue_id AND m.log_offset = q.min_offset WHERE {where}"
        f" AND q.next_offset - q.min_offset > {gaps_since(session, 'q.min_offset')}"
        " AND (m.stored_at IS NULL OR m.stored_at <= ? - own.retention)",
        (*some, now),
    )
    large = session.fetch(
        f"SELECT q.topic_id {joined} WHERE {where} AND own.retention_bytes > 0"
        " GROUP BY q.topic_id, own.retention_bytes HAVING SUM(q.stored_bytes) > own.retention_bytes",
        some,
    )
    ids = sorted({row[0] for row in [*expired, *large]})
    # Not from the cache: another broker may have changed the retention just now.
    query = f"SELECT {TOPIC_COLUMNS} FROM topic WHERE deleted_at IS NULL AND topic_id"
    topics = directory.load(session, lambda: session.fetch_in(query, ids)) if ids else []
    return ToTrim(topics, {row[1] for row in expired}, {row[0] for row in large}, last)


def trim_queue(session: Session, topic: Topic, queue_id: int, now: int) -> int:
    """Deletes up to CHUNK messages past the topic's retention from the head of a queue; returns how many."""
    row = session.fetch_one("SELECT min_offset FROM queue WHERE queue_id = ? AND deleted_at IS NULL", (queue_id,))
    if row is None:
        return 0
    bound = now - topic.retention
    expired = list(
        itertools.takewhile(
            lambda message: message.stored_at <= bound, oldest_messages(session, queue_id, row[0], CHUNK)
        )
    )
    if expired:
        expired = _unless_unread(session, queue_id, expired)
    if expired:
        drop_oldest(session, topic.topic_id, queue_id, row[0], expired)
    return len(expired)


def trim_topic(session: Session, topic: Topic) -> int:
    """Deletes the oldest messages of a topic that exceeds its size, up to about CHUNK; returns how many."""
    queues = session.fetch(
        "SELECT queue_id, min_offset, stored_bytes FROM queue WHERE topic_id = ? AND deleted_at IS NULL",
        (topic.topic_id,),
    )
    excess = sum(row[2] for row in queues) - topic.retention_bytes
    if not topic.retention_bytes or excess <= 0:
        return 0
    limit = max(_LEAST_OF_QUEUE, CHUNK // len(queues))
    first = {queue_id: low for queue_id, low, stored in queues if stored}
    heads = {
        queue_id: _unless_unread(session, queue_id, oldest_messages(session, queue_id, low, limit))
        for queue_id, low in first.items()
    }
    dropped: dict[int, list[OldMessage]] = {}
    oldest = [(head[0].stored_at, queue_id) for queue_id, head in heads.items() if head]
    heapq.heapify(oldest)
    while oldest and excess > 0:
        _, queue_id = heapq.heappop(oldest)
        own = dropped.setdefault(queue_id, [])
        message = heads[queue_id][len(own)]
        own.append(message)
        excess -= message.size
        if len(own) < len(heads[queue_id]):
            heapq.heappush(oldest, (heads[queue_id][len(own)].stored_at, queue_id))
        elif len(own) == limit:
            break  # Later messages of this queue were not read, and may be older than the other queues' heads.
    for queue_id in sorted(dropped):
        drop_oldest(session, topic.topic_id, queue_id, first[queue_id], dropped[queue_id])
    return sum(map(len, dropped.values()))


def trim_ops(session: Session, before: int) -> int:
    """Deletes up to CHUNK op records decided before a time, with their checks; returns how many. Uses op_decided.

    Those of scheduled messages stay: a recall finds its message only by them.
    """
    ids = [
        row[0]
        for row in session.fetch(
            "SELECT o.transaction_id FROM op_record o LEFT JOIN scheduled_message s"
            f"{session.dialect.by_index('scheduled_id')} ON s.transaction_id = o.transaction_id"
            " WHERE o.decided_at < ? AND s.transaction_id IS NULL ORDER BY o.decided_at LIMIT ?",
            (before, CHUNK),
        )
    ]
    if ids:
        ids.sort()
        session.run_in("DELETE FROM transaction_check WHERE transaction_id", ids)
        session.run_in("DELETE FROM operator_action WHERE transaction_id", ids)
        session.run_in("DELETE FROM op_record WHERE transaction_id", ids)
    return len(ids)


def trim_dedup_keys(session: Session, now: int) -> int:
    """Deletes up to CHUNK expired dedup keys; returns how many. Uses dedup_expires."""
    expired = session.fetch(
        "SELECT topic_id, dedup_hash FROM dedup_key WHERE expires_at <= ? ORDER BY expires_at LIMIT ?", (now, CHUNK)
    )
    # By primary key, and by the time again: another message may own the key by now.
    query = "DELETE FROM dedup_key WHERE topic_id = ? AND dedup_hash = ? AND expires_at <= ?"
    session.execute_all([Statement(query, (topic_id, own, now)) for topic_id, own in sorted(tuple(r) for r in expired)])
    return len(expired)
