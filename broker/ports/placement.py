"""What is placed in which cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.cell import Name, Placement


class PlacementStore(Protocol):
    """The list of placements, in the home database. What it does not name is in the home database."""

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        """Where these are, of those that the list names."""
        ...

    async def place(self, name: Name, cell: int) -> Placement:
        """Places something new in another cell than home, unless it is placed; returns where it is.

        Raises:
            AlreadyExists: it is in the home database.
        """
        ...

    async def withdraw(self, name: Name, cell: int) -> None:
        """Takes something that is in its cell no more from the list, unless the list has it in another cell by now.

        It is not created in the home database before `readmit`.
        """
        ...

    async def readmit(self, name: Name) -> None:
        """Lets something be created in the home database again, unless it is placed."""
        ...

    async def displaced(self, names: Sequence[Name]) -> list[Name]:
        """Those that were withdrawn, and are not let into the home database."""
        ...

    async def placed_now(self, names: Sequence[Name]) -> tuple[dict[Name, Placement], int]:
        """Where these are, of those that the list names, and the number of the last move."""
        ...

    async def moved_lately(self, since: int) -> bool:
        """Whether something is being moved, or was since a time (microseconds)."""
        ...

    async def open_moves(self) -> dict[int, int]:
        """The cells that moves leave which have not ended, by the numbers of the moves."""
        ...

    async def ended_lately(self, since: int) -> bool:
        """Whether a move has ended since a time (microseconds)."""
        ...

    async def moved_names(self, names: Collection[Name], since: int) -> set[Name]:
        """Those of names leaving their cell in a move, or in one that has ended since a time (microseconds)."""
        ...


class CellNames(Protocol):
    """How much a cell has, and what it may have."""

    async def was_sealed(self, move: int) -> bool:
        """Whether a move that leaves the cell has taken something from it, or was given up."""
        ...

    async def let_in(self, names: Sequence[Name], last_move: int) -> None:
        """Lets the cell have names again that had left it by moves up to a number."""
        ...

    async def stored_bytes(self) -> int:
        """Bytes of the bodies in all topics of the cell."""
        ...
