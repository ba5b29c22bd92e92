"""Compares copied logs with those in the cell that is left: numbers of messages, and bytes of their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from broker.storage.engine.session import Session
    from broker.storage.moving.copying import Queue

AT_ONCE = 20_000


def following(session: Session, queue: Queue, first: int, end: int) -> int:
    """The end of the next messages that are compared together, from an offset on."""
    row = session.fetch_one(
        "SELECT log_offset FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?"
        f" ORDER BY log_offset LIMIT 1 OFFSET {AT_ONCE}",
        (queue.queue_id, first, end),
    )
    return end if row is None else int(row[0])


def measure(session: Session, queue: Queue, first: int, end: int) -> tuple[int, int]:
    """How many messages there are between two offsets, and how many bytes their bodies have."""
    count, size = session.fetch(
        "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM message"
        " WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?",
        (queue.queue_id, first, end),
    )[0]
    return int(count), int(size)


def low_of(session: Session, queue: Queue) -> int | None:
    """The first offset that a queue has kept; None: there is no such queue."""
    row = session.fetch_one("SELECT min_offset FROM queue WHERE queue_id = ?", (queue.queue_id,))
    return None if row is None else int(row[0])


def end_of(session: Session, queue: Queue) -> int:
    """The offset behind the last message of a queue; 0: there is none."""
    return int(
        session.fetch("SELECT COALESCE(MAX(log_offset) + 1, 0) FROM message WHERE queue_id = ?", (queue.queue_id,))[0][
            0
        ]
    )


def unequal(queue: Queue, there: object, here: object) -> MoveRefused:
    """The refusal of a move whose copy is not what was copied."""
    return MoveRefused(
        f"The queue {queue.queue_id} has {there} in the cell that is left, and {here} in the other one (messages and"
        " bytes, or first offset and end): the move is given up, and nothing was lost. Please report this.",
        Why.COPY_DIFFERS,
        field="move",
    )
