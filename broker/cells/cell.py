"""The cells of a broker, and how many calls each gets at a time."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.domain.cell import LONGEST_SHOWN, Name
from broker.errors import CellAway, InvalidArgument, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from broker.domain.lease import Receipt
    from broker.services.judges import Judge


@dataclass(slots=True, eq=False)
class Cell:
    """A cell.

    Attributes:
        number, name: of the cell.
        servicers: what serves it; None while its database cannot be reached, since the broker started.
        stored_bytes: tells how much it has.
        finds: tells whether something exists there.
        let_in: lets it have names again that had left it by moves up to a number.
        has_receipts: tells whether some of these receipts are of leases there, of groups that the caller may settle
            for.
        was_sealed: tells whether a move that leaves it has taken something from it.
    """

    number: int
    name: str
    servicers: Any = None
    stored_bytes: Callable[[], Awaitable[int]] | None = None
    finds: Callable[[Name], Awaitable[bool]] | None = None
    let_in: Callable[[Sequence[Name], int], Awaitable[None]] | None = None
    has_receipts: Callable[[Sequence[Receipt], Judge | None], Awaitable[bool]] | None = None
    was_sealed: Callable[[int], Awaitable[bool]] | None = None


class Cells:
    """The cells that a broker knows.

    Attributes:
        each: all of them, home first.
    """

    def __init__(self, cells: Sequence[Cell], *, max_calls: int) -> None:
        """Takes the cells (home is the first one).

        A cell gets at most half of `max_calls` at a time: one that does not answer keeps no place from the others.
        """
        self.each = list(cells)
        self._by_number = {cell.number: cell for cell in cells}
        self._most = max(1, max_calls // 2)
        self._busy = dict.fromkeys(cells, 0)

    def counted_apart(self, max_calls: int) -> Cells:
        """The same for calls of which there are at most so many, and which are counted apart from all others."""
        own = copy(self)
        own._most = max(1, max_calls // 2)
        own._busy = dict.fromkeys(self.each, 0)
        return own

    def without_limit(self) -> Cells:
        """The same, however many calls are under way."""
        own = copy(self)
        own._most = sys.maxsize
        return own

    @property
    def home(self) -> Cell:
        """The cell of the home database."""
        return self.each[0]

    def numbered(self, number: int) -> Cell:
        """A cell by its number.

        Raises:
            StorageUnavailable: this broker does not know it yet.
        """
        found = self._by_number.get(number)
        if found is None:
            raise StorageUnavailable("The cell is new, and this broker does not know it: name it in `cells`.")
        return found

    def named(self, name: str, field: str) -> Cell:
        """A cell by its name.

        Raises:
            InvalidArgument: there is none.
        """
        for cell in self.each:
            if cell.name == name:
                return cell
        known = ", ".join(cell.name for cell in self.each)
        raise InvalidArgument(f"There is no cell {name[:LONGEST_SHOWN]!r}; there are {known}.", field=field)

    def in_turn(self, first: Cell | None = None) -> list[Cell]:
        """All cells, one of them first."""
        return self.each if first is None else [first, *[cell for cell in self.each if cell is not first]]

    @contextmanager
    def calling(self, cell: Cell) -> Iterator[Any]:
        """The servicers of a cell, for a call.

        Raises:
            StorageUnavailable: it cannot be reached, or has too many calls under way.
        """
        if cell.servicers is None:
            raise CellAway(cell.name)
        if self._busy[cell] >= self._most:
            raise StorageUnavailable(f"{self._busy[cell]} calls for the cell {cell.name!r} are under way; come back.")
        self._busy[cell] += 1
        try:
            yield cell.servicers
        finally:
            self._busy[cell] -= 1

    async def has(self, cell: Cell, name: Name) -> bool:
        """Whether something is in a cell, which is a call for it as any other one.

        Raises:
            StorageUnavailable: it cannot be reached, or has too many calls under way.
        """
        with self.calling(cell):
            if cell.finds is None:
                raise CellAway(cell.name)
            return await cell.finds(name)

    async def least_loaded(self) -> Cell:
        """The cell with the fewest bytes, of those that can be reached."""
        loads: list[tuple[int, int]] = []
        for cell in self.each:
            if cell.servicers is None or cell.stored_bytes is None:
                continue
            try:
                loads.append((await cell.stored_bytes(), cell.number))
            except StorageUnavailable:
                continue
        if not loads:
            raise StorageUnavailable("No cell can be reached.")
        return self.numbered(min(loads)[1])
