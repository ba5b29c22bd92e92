"""Finds offsets by the time at which their messages became visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import NotFound
from broker.storage.engine.statements import marks

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session


def offset_at(session: Session, queue_id: int, time: int, low: int, high: int) -> int:
    """The first offset in [low, high) that became visible at a time or later; `high` where there is none.

    Binary search by primary key: offsets are dense, and later ones were stored later (up to the difference of two
    brokers' clocks).
    """
    while low < high:
        middle = (low + high) // 2
        row = session.fetch_one(
            "SELECT log_offset, stored_at FROM message WHERE queue_id = ? AND log_offset >= ?"
            " ORDER BY log_offset LIMIT 1",
            (queue_id, middle),
        )
        if row is None or row[0] >= high:
            high = middle  # Deleted by retention.
        elif row[1] >= time:
            high = middle
        else:
            low = row[0] + 1
    return low


def offsets_at(session: Session, topic: Topic, time: int) -> list[int]:
    """For each queue of a topic the first offset that became visible at a time or later.

    Raises:
        NotFound: the topic was deleted, or has left this cell.
    """
    bounds = _bounds(session, topic)
    found = [offset_at(session, queue_id, time, *bounds[queue_id]) for queue_id in topic.queue_ids]
    # What was deleted meanwhile with its topic has no time.
    _bounds(session, topic)
    return found


def _bounds(session: Session, topic: Topic) -> dict[int, tuple[int, int]]:
    found = session.fetch(
        "SELECT queue_id, min_offset, next_offset FROM queue"
        f" WHERE deleted_at IS NULL AND queue_id IN ({marks(topic.queue_ids)})",
        topic.queue_ids,
    )
    if len(found) < len(topic.queue_ids):
        raise NotFound(f"The topic {topic.name!r} was deleted.", reason="TOPIC_NOT_FOUND", field="topic")
    return {queue_id: (low, high) for queue_id, low, high in found}
