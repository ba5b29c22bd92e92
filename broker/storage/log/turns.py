"""Turns: at any time, one broker does a piece of maintenance, for as long as its database transaction runs.

The turn is the lock of a row of maintenance_turn, which ends with the broker's transaction: its death blocks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.engine.session import Session


def take_turn(session: Session, task: str) -> bool:
    """Takes the turn of a task until the transaction ends; whether no other broker has it."""
    query = "SELECT task FROM maintenance_turn WHERE task = ?"
    if session.fetch(query + session.dialect.skip_locked, (task,)):
        return True
    if session.fetch(query, (task,)):
        return False
    session.insert("maintenance_turn", "task, broker_id, until", [(task, "", 0)], keep_existing="task")
    return True
