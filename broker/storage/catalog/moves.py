"""How far moves between cells are in this database, as one that is left or one that is moved to: the table move_state.

A move's row is locked by every transaction of the move here. So one that was held up for long learns that another
process went on, or gave the move up.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from broker.errors import Moved
from broker.storage.catalog.placement import left_here

if TYPE_CHECKING:
    from broker.domain.cell import Name
    from broker.storage.engine.session import Session


class MoveState(IntEnum):
    """How far a move is in a database; GIVEN_UP is final in both."""

    COMING = 1
    COME = 2
    GIVEN_UP = 3
    SEALED = 4
    GONE = 5


def state_of(session: Session, move_id: int, *, locked: bool = False) -> MoveState | None:
    """How far a move is here; None: nothing was done yet.

    Args:
        session: a transaction.
        move_id: the move.
        locked: whether nobody else may change it until the transaction ends.
    """
    query = "SELECT state FROM move_state WHERE move_id = ?"
    row = session.fetch_one(query + (session.dialect.for_update if locked else ""), (move_id,))
    return None if row is None else MoveState(row[0])


def enter(session: Session, move_id: int, state: MoveState, now: int) -> MoveState | None:
    """Notes a move that is new here; locks it, and returns how far it was before (None: it is new).

    Waits for another transaction that notes it, too.
    """
    values = (move_id, int(state), now)
    if session.insert("move_state", "move_id, state, since", [values], keep_existing="move_id"):
        return None
    return state_of(session, move_id, locked=True)


def advance(session: Session, move_id: int, state: MoveState, now: int) -> None:
    """Changes how far a move is, whose row is locked."""
    session.run("UPDATE move_state SET state = ?, since = ? WHERE move_id = ?", (int(state), now, move_id))


def sealed(session: Session) -> list[int]:
    """The moves that have taken something out of this database, and have not ended here."""
    found = session.fetch("SELECT move_id FROM move_state WHERE state = ? ORDER BY move_id", (int(MoveState.SEALED),))
    return [int(row[0]) for row in found]


def left_since(session: Session, since: int) -> bool:
    """Whether something is sealed here, and may leave, or has left or come back since a time (microseconds). Few rows.

    A lease of what came back may have been looked for before.
    """
    query = "SELECT 1 FROM move_state WHERE state = ? OR (state IN (?, ?) AND since >= ?) LIMIT 1"
    return bool(session.fetch(query, (int(MoveState.SEALED), int(MoveState.GONE), int(MoveState.GIVEN_UP), since)))


def refuse_what_left(session: Session, name: Name) -> None:
    """Refuses to create what moved to another cell, or to take it for deleted.

    Asked after the row is inserted, or was not found with a lock: that waits for such a move.

    Raises:
        Moved: it did.
    """
    if left_here(session, name):
        raise Moved(name)
