"""Forgetting: the heads of queues and old op records, in small pieces by primary key, by one broker at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.session import Session

CHUNK = 1000


def take_turn(session: Session, task: str, broker_id: str, now: int, hold: int) -> bool:
    """Whether this broker may do a task now; it keeps the turn for `hold` microseconds."""
    session.insert("maintenance_turn", "task, broker_id, until", [(task, "", 0)], keep_existing="task")
    # The row count would not tell: MySQL does not count a row that it set to what it was.
    session.run(
        "UPDATE maintenance_turn SET broker_id = ?, until = ? WHERE task = ? AND (broker_id = ? OR until <= ?)",
        (broker_id, now + hold, task, broker_id, now),
    )
    return bool(session.fetch("SELECT broker_id FROM maintenance_turn WHERE task = ?", (task,))[0][0] == broker_id)


def trim_queue(session: Session, topic: Topic, queue_id: int, now: int) -> int:
    """Deletes up to CHUNK messages from the head of a queue that are past the topic's retention; how many."""
    row = session.fetch_one("SELECT min_offset FROM queue WHERE queue_id = ?", (queue_id,))
    if row is None:
        return 0
    bound = now - topic.retention
    # Range of the primary key, from the saved lower bound on.
    expired = 0
    first = row[0]
    for offset, stored_at in session.fetch(
        "SELECT log_offset, stored_at FROM message WHERE queue_id = ? AND log_offset >= ? ORDER BY log_offset LIMIT ?",
        (queue_id, row[0], CHUNK),
    ):
        if stored_at > bound:
            break
        expired += 1
        first = offset + 1
    if expired:
        session.run(
            "DELETE FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?", (queue_id, row[0], first)
        )
        session.run("UPDATE queue SET min_offset = ? WHERE queue_id = ? AND min_offset < ?", (first, queue_id, first))
    return expired


def trim_ops(session: Session, before: int) -> int:
    """Deletes up to CHUNK op records decided before a time, with their check history; how many. Uses op_decided."""
    ids = [
        row[0]
        for row in session.fetch(
            "SELECT transaction_id FROM op_record WHERE decided_at < ? ORDER BY decided_at LIMIT ?", (before, CHUNK)
        )
    ]
    if ids:
        ids.sort()
        session.run_in("DELETE FROM transaction_check WHERE transaction_id", ids)
        session.run_in("DELETE FROM operator_action WHERE transaction_id", ids)
        session.run_in("DELETE FROM op_record WHERE transaction_id", ids)
    return len(ids)
