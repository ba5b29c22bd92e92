"""Whose turn it is for work that one broker does at a time: a row for each task."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


def is_free(session: Session, task: str, broker_id: str, now: int) -> bool:
    """Whether a broker may take the turn: it is its own, or another one's that is over."""
    row = session.fetch_one("SELECT broker_id, until FROM maintenance_turn WHERE task = ?", (task,))
    return row is None or row[0] == broker_id or int(row[1]) <= now


def take(session: Session, task: str, broker_id: str, now: int, hold: int) -> bool:
    """Takes or keeps the turn for `hold` microseconds, if no other broker was faster; returns whether."""
    _update(session, task, broker_id, now, hold)
    # The row count is not usable: MySQL does not count a row with an unchanged value.
    holder = _holder(session, task)
    if holder is None:
        session.insert("maintenance_turn", "task, broker_id, until", [(task, "", 0)], keep_existing="task")
        _update(session, task, broker_id, now, hold)
        holder = _holder(session, task)
    return holder == broker_id


def _update(session: Session, task: str, broker_id: str, now: int, hold: int) -> None:
    session.run(
        "UPDATE maintenance_turn SET broker_id = ?, until = ? WHERE task = ? AND (broker_id = ? OR until <= ?)",
        (broker_id, now + hold, task, broker_id, now),
    )


def _holder(session: Session, task: str) -> str | None:
    row = session.fetch_one("SELECT broker_id FROM maintenance_turn WHERE task = ?", (task,))
    return None if row is None else str(row[0])


def leave(session: Session, broker_id: str) -> None:
    """Ends all turns of a broker, which drains. A few rows: no index."""
    session.run("UPDATE maintenance_turn SET until = 0 WHERE broker_id = ?", (broker_id,))
