"""Finds offsets by the time at which their messages became visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """For each queue of a topic the first offset that became visible at a time or later."""
    bounds = {
        row[0]: (row[1], row[2])
        for row in session.fetch(
            f"SELECT queue_id, min_offset, next_offset FROM queue WHERE queue_id IN ({marks(topic.queue_ids)})",
            topic.queue_ids,
        )
    }
    return [
        offset_at(session, queue_id, time, *bounds[queue_id]) if queue_id in bounds else 0
        for queue_id in topic.queue_ids
    ]
