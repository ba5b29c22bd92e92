"""Turns: at any time, one broker does a piece of maintenance, for as long as its database transaction runs.

The turn is the lock of a row of maintenance_turn, which ends with the broker's transaction: its death blocks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.storage.engine.session import Session


def missing(session: Session, tasks: Iterable[str]) -> list[str]:
    """The tasks without a row."""
    known = {row[0] for row in session.fetch("SELECT task FROM maintenance_turn")}
    return [task for task in tasks if task not in known]


def make_rows(session: Session, tasks: Iterable[str]) -> None:
    """Makes rows of tasks that have none: whoever takes a turn for the first time would lock a row that nobody sees."""
    session.insert(
        "maintenance_turn", "task, broker_id, until", [(task, "", 0) for task in tasks], keep_existing="task"
    )


def take_turn(session: Session, task: str) -> bool:
    """Takes the turn of a task until the transaction ends; whether no other broker has it."""
    query = "SELECT task FROM maintenance_turn WHERE task = ?"
    if session.fetch(query + session.dialect.skip_locked, (task,)):
        return True
    if session.fetch(query, (task,)):
        return False
    make_rows(session, [task])
    return True
