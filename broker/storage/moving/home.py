"""Moves in the home database: the list of moves, and the placements of what moves. One move at a time in all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.cell import HOME_NUMBER, Name, Placed
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.storage.catalog import audit
from broker.storage.catalog.placement import placements
from broker.storage.moving.refusals import MoveRefused, Why

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

BEGUN, DONE, GIVEN_UP = 1, 2, 3
"""Values of cell_move.state."""
MOST_SHOWN = 50
MOST_TOLD = 2000
"""Characters of a record of what was done."""
_MOVE = "SELECT move_id, from_cell, to_cell, state, names, started_at, ended_at, told_by FROM cell_move"


class Move(NamedTuple):
    """A move; times in microseconds.

    Attributes:
        number: of the move; later ones have greater ones.
        source, target: numbers of the cells.
        state: BEGUN, DONE or GIVEN_UP.
        names: what is placed.
        started_at: when.
        ended_at: when; None: not yet.
        told_by: who began it.
    """

    number: int
    source: int
    target: int
    state: int
    names: list[Name]
    started_at: int
    ended_at: int | None
    told_by: str


def open_move(session: Session) -> Move | None:
    """The move that has not ended, if there is one."""
    row = session.fetch_one(f"{_MOVE} WHERE state = ? ORDER BY move_id LIMIT 1", (BEGUN,))
    return None if row is None else _move(row)


def latest(session: Session) -> list[Move]:
    """The last moves, the newest first."""
    return [_move(row) for row in session.fetch(f"{_MOVE} ORDER BY move_id DESC LIMIT ?", (MOST_SHOWN,))]


def _move(row: Sequence[object]) -> Move:
    number, source, target, state, names, *rest = row
    listed = [Name(Placed(kind), text) for kind, text in json.loads(bytes(names))]  # type: ignore[call-overload]
    return Move(number, source, target, state, listed, *rest)  # type: ignore[arg-type]


def counts(session: Session) -> dict[tuple[int, Placed], int]:
    """How many names are placed, by cell and kind; what is at home without a row is not counted."""
    rows = session.fetch("SELECT cell_no, kind, COUNT(*) FROM placement GROUP BY cell_no, kind")
    return {(int(cell), Placed(kind)): int(count) for cell, kind, count in rows}


def cell_of(session: Session, names: Sequence[Name]) -> int:
    """The cell in which names are.

    Raises:
        MoveRefused: they are in several, or are moving.
    """
    found = placements(session, names)
    moving = sorted(name for name, place in found.items() if place.move is not None)
    if moving:
        raise MoveRefused(f"{moving[0]} is moving already; see `halfmq cells`.", Why.MOVING)
    cells = {name: found[name].cell if name in found else HOME_NUMBER for name in names}
    if len(set(cells.values())) > 1:
        told = ", ".join(f"{name} in {cell}" for name, cell in sorted(cells.items()))
        raise MoveRefused(
            f"These are in different cells, which a move begins from one of: {told}.",
            Why.IN_SEVERAL_CELLS,
        )
    return next(iter(cells.values()), HOME_NUMBER)


def begin(session: Session, names: Sequence[Name], source: int, target: int, now: int, told_by: str) -> Move:
    """Notes a move, and that its names are moving. From then on brokers ask again where these are.

    Raises:
        MoveRefused: another move has not ended, or a name is not in the cell that it is to leave.
    """
    # One at a time: whoever begins one waits here.
    session.fetch("SELECT cell_no FROM cell WHERE cell_no = ?" + session.dialect.for_update, (HOME_NUMBER,))
    if (other := open_move(session)) is not None:
        raise MoveRefused(
            f"The move {other.number} has not ended: go on with `halfmq cells move --resume`, or take it back with"
            " `halfmq cells move --give-up`.",
            Why.MOVING,
        )
    found = placements(session, names, locked=True)
    for name in names:
        place = found.get(name)
        if (HOME_NUMBER if place is None else place.cell) != source or (place is not None and place.move is not None):
            raise MoveRefused(f"{name} is in another cell by now; try again.", Why.MOVING)
    listed = json.dumps([[int(name.kind), name.text] for name in sorted(names)]).encode()
    session.insert(
        "cell_move",
        "from_cell, to_cell, state, names, started_at, told_by",
        [(source, target, BEGUN, listed, now, told_by)],
    )
    number = int(session.fetch("SELECT MAX(move_id) FROM cell_move")[0][0])
    detail = f"move {number} from cell {source} to {target}: {', '.join(map(str, sorted(names)))}"[:MOST_TOLD]
    record = AuditRecord(told_by, "", "halfmq cells move", "UPDATE", "cells", AuditOutcome.ALLOWED, detail=detail)
    audit.append(session, [record], now, "halfmq cells")
    new = [(int(name.kind), name.text, HOME_NUMBER) for name in sorted(names) if name not in found]
    if new:
        session.insert("placement", "kind, name, cell_no", new, keep_existing="name")
    for name in sorted(names):
        session.run(
            "UPDATE placement SET move_id = ? WHERE kind = ? AND name = ? AND move_id IS NULL",
            (number, int(name.kind), name.text),
        )
    return Move(number, source, target, BEGUN, sorted(names), now, None, told_by)


def was_begun(session: Session, move: Move) -> bool:
    """Whether the COMMIT that noted a move took effect; waits for one that is on its way."""
    session.fetch("SELECT cell_no FROM cell WHERE cell_no = ?" + session.dialect.for_update, (HOME_NUMBER,))
    query = "SELECT 1 FROM cell_move WHERE move_id = ? AND started_at = ? AND told_by = ?"
    return bool(session.fetch(query, (move.number, move.started_at, move.told_by)))


def place_anew(session: Session, move: Move) -> None:
    """Places what has moved in the cell that it moved to; what is at home needs no row."""
    if move.target == HOME_NUMBER:
        session.run("DELETE FROM placement WHERE move_id = ?", (move.number,))
    session.run("UPDATE placement SET cell_no = ?, move_id = NULL WHERE move_id = ?", (move.target, move.number))


def leave_placed(session: Session, move: Move) -> None:
    """Leaves what was to move in the cell where it is; what is at home has a row until the move has ended."""
    session.run("UPDATE placement SET move_id = NULL WHERE move_id = ?", (move.number,))


def end(session: Session, move: Move, state: int, now: int) -> None:
    """Notes that a move has ended: DONE, or GIVEN_UP."""
    ended = session.run(
        "UPDATE cell_move SET state = ?, ended_at = ? WHERE move_id = ? AND state = ?",
        (state, now, move.number, BEGUN),
    )
    if ended and move.source == HOME_NUMBER:
        for name in sorted(move.names):
            session.run(
                "DELETE FROM placement WHERE kind = ? AND name = ? AND cell_no = ? AND move_id IS NULL",
                (int(name.kind), name.text, HOME_NUMBER),
            )
