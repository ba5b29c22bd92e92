"""Rows that a move keeps in the table moving_row: in the cell that is left what was taken out of its tables.

In the cell that is moved to, notes of what was copied there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.storage.moving.packing import joined, packed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.storage.engine.session import Session

MOST_BYTES = 1 << 20
"""Approximate size of one of them, unless a single row has more."""


class TakenRows:
    """Stores rows of tables under a move, in a transaction that holds the move's lock.

    Attributes:
        count: how many were stored.
    """

    def __init__(self, session: Session, move_id: int) -> None:
        """Goes on behind those that are stored already."""
        self._session = session
        self._move_id = move_id
        query = "SELECT COALESCE(MAX(row_no), 0) FROM moving_row WHERE move_id = ?"
        self._last = int(session.fetch(query, (move_id,))[0][0])
        self.count = 0

    def add(self, origin: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        """Stores rows.

        Args:
            origin: name of their table, or what they are notes of.
            columns: names of their columns, separated by commas.
            rows: the values.
        """
        piece: list[bytes] = []
        size = 0
        for row in rows:
            own = packed(row)
            if size and size + len(own) > MOST_BYTES:
                self._store(origin, columns, piece)
                piece, size = [], 0
            piece.append(own)
            size += len(own)
        self._store(origin, columns, piece)

    def _store(self, origin: str, columns: str, piece: Sequence[bytes]) -> None:
        if not piece:
            return
        self._last += 1
        self.count += len(piece)
        values = (self._move_id, self._last, origin, joined(columns, piece))
        self._session.insert("moving_row", "move_id, row_no, origin, content", [values])


class Stored(NamedTuple):
    """Some rows that are stored under a move.

    Attributes:
        number: its place among them.
        origin: the name of their table, or what they are notes of.
        columns: names of their columns, separated by commas.
        rows: the values.
    """

    number: int
    origin: str
    columns: str
    rows: list[tuple[Any, ...]]


def read_one(session: Session, move_id: int, after: int = 0, origin: str = "") -> Stored | None:
    """The next rows that are stored under a move; None: there are no more.

    Args:
        session: for reading, or a transaction.
        move_id: the move.
        after: number of the ones before.
        origin: only of this one.
    """
    condition, values = (" AND origin = ?", [origin]) if origin else ("", [])
    row = session.fetch_one(
        f"SELECT row_no, origin, content FROM moving_row WHERE move_id = ? AND row_no > ?{condition}"
        " ORDER BY row_no LIMIT 1",
        (move_id, after, *values),
    )
    return None if row is None else Stored(row[0], row[1], *unpack(bytes(row[2])))


def read(session: Session, move_id: int, origin: str = "") -> Iterator[Stored]:
    """What is stored under a move, in its order, one piece at a time."""
    after = 0
    while (found := read_one(session, move_id, after, origin)) is not None:
        yield found
        after = found.number


def forget(session: Session, move_id: int) -> None:
    """Deletes all that is stored under a move."""
    session.run("DELETE FROM moving_row WHERE move_id = ?", (move_id,))
