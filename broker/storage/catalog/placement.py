"""What is placed in which cell: rows of the home database. What has none is in the home database itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from broker.domain.cell import Name, Placed, Placement
from broker.errors import AlreadyExists

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.storage.engine.session import Session

_TABLES = {Placed.TOPIC: "topic", Placed.GROUP: "consumer_group", Placed.SINK: "sink"}
_TAKEN = {Placed.TOPIC: "TOPIC_EXISTS", Placed.GROUP: "GROUP_EXISTS", Placed.SINK: "SINK_EXISTS"}


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
            session.dialect.for_update if locked else "",
        )
        found |= {Name(kind, text): Placement(cell, move) for text, cell, move in rows}
    return found


def place(session: Session, name: Name, cell: int) -> Placement:
    """Places something that is new in another cell than home, unless somebody else has; returns where it is.

    From then on it is not created in the home database. A creation there inserts first and asks `left_here` then, so
    that of the two one waits for the other.

    Args:
        session: a transaction in the home database.
        name: what it is.
        cell: number of the cell.

    Raises:
        AlreadyExists: it is in the home database.
    """
    kind, text = int(name.kind), name.text
    if session.insert("placement", "kind, name, cell_no", [(kind, text, cell)], keep_existing="name"):
        session.insert("moved_name", "kind, name, move_id", [(kind, text, 0)], keep_existing="name")
        table = _TABLES[name.kind]
        if session.fetch(f"SELECT 1 FROM {table} WHERE name = ?" + session.dialect.for_share, (text,)):
            raise AlreadyExists(
                f"There is a {name} in the home database already.", reason=_TAKEN[name.kind], field="name"
            )
    return placements(session, [name])[name]


def withdraw(session: Session, name: Name, cell: int) -> None:
    """Forgets the place of something that is not in its cell: it was deleted, or never created.

    Not if it is being moved, or was meanwhile. It is not created in the home database before `readmit`.
    """
    query = "DELETE FROM placement WHERE kind = ? AND name = ? AND cell_no = ? AND move_id IS NULL"
    session.run(query, (int(name.kind), name.text, cell))


def readmit(session: Session, name: Name) -> None:
    """Lets something be created in the home database again, unless it is placed: it is in no other cell."""
    key = (int(name.kind), name.text)
    # Whoever places it waits here, or is waited for. Without a row nobody waits, and there is none to delete.
    refused = session.fetch("SELECT 1 FROM moved_name WHERE kind = ? AND name = ?" + session.dialect.for_update, key)
    if refused and not placements(session, [name]):
        session.run("DELETE FROM moved_name WHERE kind = ? AND name = ?", key)


def displaced(session: Session, names: Sequence[Name]) -> list[Name]:
    """Those that are placed nowhere, and that the home database refuses: whoever withdrew them has not come to an end.

    Or will not: it was killed in between.
    """
    refused: list[Name] = []
    for kind in Placed:
        query = f"SELECT name FROM moved_name WHERE kind = {int(kind)} AND name"
        texts = sorted({name.text for name in names if name.kind is kind})
        refused += [Name(kind, text) for (text,) in session.fetch_in(query, texts)]
    placed = placements(session, refused)
    return [name for name in refused if name not in placed]


def moved_lately(session: Session, since: int) -> bool:
    """Whether something is being moved, or was since a time (microseconds)."""
    # Few rows.
    return bool(session.fetch("SELECT 1 FROM cell_move WHERE ended_at IS NULL OR ended_at >= ? LIMIT 1", (since,)))


def open_moves(session: Session) -> dict[int, int]:
    """The cells that moves leave which have not ended, by the numbers of the moves."""
    found = session.fetch("SELECT move_id, from_cell FROM cell_move WHERE ended_at IS NULL")
    return {int(move): int(cell) for move, cell in found}


def ended_lately(session: Session, since: int) -> bool:
    """Whether a move has ended since a time (microseconds)."""
    return bool(session.fetch("SELECT 1 FROM cell_move WHERE ended_at >= ? LIMIT 1", (since,)))


def moved_names(session: Session, names: Collection[Name], since: int) -> set[Name]:
    """Those of names that may be on their way: in a move that has ended since a time (microseconds), or has not ended.

    Of the latter it is what is placed in the cell that it leaves. While the move is taken back, this is so until it has
    ended; when it is decided, it is so no more: what is in the other cell may be deleted there, however long it takes
    until the move has ended.
    """
    found: set[Name] = set()
    leaving = session.fetch("SELECT from_cell, names FROM cell_move WHERE ended_at IS NULL")
    for cell, listed in leaving:
        # Each has a row until then, at home, too. There may be 10,000 of them: only those that are asked for.
        placed = placements(session, sorted(set(names).intersection(_names(listed))))
        found |= {name for name, placement in placed.items() if placement.cell == cell}
    # Behind the others: one that ends meanwhile is met here.
    for (listed,) in session.fetch("SELECT names FROM cell_move WHERE ended_at >= ?", (since,)):
        found.update(set(names).intersection(_names(listed)))
    return found


def _names(listed: bytes) -> list[Name]:
    return [Name(Placed(kind), text) for kind, text in json.loads(bytes(listed))]


def stored_bytes(session: Session) -> int:
    """Bytes of the bodies in all topics of a cell."""
    return int(session.fetch("SELECT COALESCE(SUM(stored_bytes), 0) FROM queue")[0][0])


def placed_now(session: Session, names: Sequence[Name]) -> tuple[dict[Name, Placement], int]:
    """Where names are, and the number of the last move: later ones may have changed that since."""
    # First the number: of a move that begins behind it, nothing is said.
    last = int(session.fetch("SELECT COALESCE(MAX(move_id), 0) FROM cell_move")[0][0])
    return placements(session, names), last


def let_in(session: Session, names: Sequence[Name], last_move: int) -> None:
    """Lets this cell have names again that had left it, by moves up to a number: they were deleted, and placed anew.

    What left by a later move stays refused, however late this comes.
    """
    for name in sorted(names):
        session.run(
            "DELETE FROM moved_name WHERE kind = ? AND name = ? AND move_id <= ?",
            (int(name.kind), name.text, last_move),
        )


def left_here(session: Session, name: Name) -> bool:
    """Whether something has left this cell; a transaction in the cell that creates it again asks this.

    The row is locked: a move that comes back, or leaves, is waited for.
    """
    query = "SELECT 1 FROM moved_name WHERE kind = ? AND name = ?" + session.dialect.for_share
    return bool(session.fetch(query, (int(name.kind), name.text)))
