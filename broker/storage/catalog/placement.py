"""What is placed in which cell: rows of the home database. What has none is in the home database itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.cell import HOME_NUMBER, Name, Placed, Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session


def placements(session: Session, names: Sequence[Name], *, locked: bool = False) -> dict[Name, Placement]:
    """Where these are; those that are not among the answers are in the home database, and stay there.

    Args:
        session: a transaction in the home database.
        names: what to look for.
        locked: whether nobody else may change the rows until the transaction ends.
    """
    found: dict[Name, Placement] = {}
    for kind in Placed:
        texts = sorted({name.text for name in names if name.kind is kind})
        rows = session.fetch_in(
            f"SELECT name, cell_no, move_id FROM placement WHERE kind = {int(kind)} AND name",
            texts,
            *([session.dialect.for_update] if locked else []),
        )
        found |= {Name(kind, text): Placement(cell, move) for text, cell, move in rows}
    return found


def place(session: Session, name: Name, cell: int) -> Placement:
    """Places something that is new, unless somebody else has; returns where it is."""
    session.insert(
        "placement", "kind, name, cell_no", [(int(name.kind), name.text, cell)], keep_existing="name"
    )
    return placements(session, [name])[name]


def withdraw(session: Session, name: Name) -> None:
    """Forgets the place of something that was deleted, unless it is being moved."""
    session.run(
        "DELETE FROM placement WHERE kind = ? AND name = ? AND move_id IS NULL", (int(name.kind), name.text)
    )


def placed_in(session: Session, cell: int, kind: Placed, after: str, limit: int) -> list[str]:
    """Names of one kind that are placed in a cell, in their order, after `after`."""
    rows = session.fetch(
        "SELECT name FROM placement WHERE cell_no = ? AND kind = ? AND name > ? ORDER BY name LIMIT ?",
        (cell, int(kind), after, limit),
    )
    return [row[0] for row in rows]


def numbers_placed(session: Session) -> dict[int, int]:
    """How many topics are placed in each cell, home left out."""
    rows = session.fetch(
        "SELECT cell_no, COUNT(*) FROM placement WHERE kind = ? AND cell_no <> ? GROUP BY cell_no",
        (int(Placed.TOPIC), HOME_NUMBER),
    )
    return {int(cell): int(count) for cell, count in rows}


def is_moving(session: Session) -> bool:
    """Whether anything is being moved."""
    return bool(session.fetch("SELECT 1 FROM placement WHERE move_id IS NOT NULL LIMIT 1"))


def left_here(session: Session, name: Name) -> bool:
    """Whether something has left this cell; a transaction in the cell that creates it again asks this.

    The row is locked: a move that comes back, or leaves, is waited for.
    """
    query = "SELECT 1 FROM moved_name WHERE kind = ? AND name = ?" + session.dialect.for_share
    return bool(session.fetch(query, (int(name.kind), name.text)))
