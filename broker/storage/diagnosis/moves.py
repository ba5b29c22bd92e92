"""Moves between cells that are held up: what stands still in the cell that is left; at home also what has not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed, listed
from broker.ports.diagnosis import Finding, Severity
from broker.storage.catalog.moves import MoveState
from broker.storage.diagnosis.subject import lasting
from broker.storage.moving.home import open_move

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

NAME = "moves"
_REMEDY = (
    "if no `halfmq cells move` is at work, go on with `halfmq cells move --resume`, or take it back with"
    " `halfmq cells move --give-up`"
)


def moves(subject: Subject) -> list[Finding]:
    """What stands still since it was sealed here; otherwise a move that was begun long ago, where this is home."""
    subject.need_tables()
    session, now, settings = subject.session, subject.now(), subject.settings
    sealed = session.fetch_one(
        "SELECT move_id, since FROM move_state WHERE state = ? ORDER BY since LIMIT 1", (int(MoveState.SEALED),)
    )
    if sealed is not None:
        number, since = sealed
        if severity := settings.sealed_for.severity(now - since):
            rows = session.fetch("SELECT kind, name FROM moved_name WHERE move_id = ?", (number,))
            names = listed(sorted(Name(Placed(kind), name) for kind, name in rows))
            told = f"the move {number} to another cell sealed {names} {lasting(now - since)} ago; since then"
            return [Finding(NAME, severity, f"{told} nothing of it goes on", _REMEDY)]
    if (move := open_move(session)) is not None:
        lasts = now - move.started_at
        if severity := settings.moves_for.severity(lasts):
            told = f"the move {move.number} of {listed(move.names)} was begun {lasting(lasts)} ago, and has not ended"
            return [Finding(NAME, severity, told, _REMEDY)]
    return [Finding(NAME, Severity.OK, "no move to another cell is held up")]
