"""Placements, and how much is stored, through threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.catalog import moves, placement

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.cell import Name, Placement
    from broker.storage.engine.session import Session


class Placements(Access):
    """Implements PlacementStore and CellNames."""

    async def placements(self, names: Sequence[Name]) -> dict[Name, Placement]:
        """Where these are, of those that the list names."""
        return await self._read(lambda session: placement.placements(session, names))

    async def place(self, name: Name, cell: int) -> Placement:
        """Places something new; AlreadyExists when it is in the home database."""

        def again(session: Session, _: Placement) -> Placement:
            # Placing it twice changes nothing.
            return placement.place(session, name, cell)

        return await self._write(lambda session: placement.place(session, name, cell), redo=again)

    async def withdraw(self, name: Name, cell: int) -> None:
        """Takes something that is in its cell no more from the list, unless the list has it in another cell by now."""

        def again(session: Session, _: None) -> None:
            placement.withdraw(session, name, cell)

        await self._write(lambda session: placement.withdraw(session, name, cell), redo=again)

    async def readmit(self, name: Name) -> None:
        """Lets something be created in the home database again, unless it is placed."""
        await self._write(lambda session: placement.readmit(session, name))

    async def displaced(self, names: Sequence[Name]) -> list[Name]:
        """Those that are placed nowhere, and not let into the home database."""
        return await self._read(lambda session: placement.displaced(session, names))

    async def moved_lately(self, since: int) -> bool:
        """Whether something is being moved, or was since a time (microseconds)."""
        return await self._read(lambda session: placement.moved_lately(session, since))

    async def open_moves(self) -> dict[int, int]:
        """The cells that moves leave which have not ended, by the numbers of the moves."""
        return await self._read(placement.open_moves)

    async def ended_lately(self, since: int) -> bool:
        """Whether a move has ended since a time (microseconds)."""
        return await self._read(lambda session: placement.ended_lately(session, since))

    async def was_sealed(self, move: int) -> bool:
        """Whether a move that leaves this cell has taken something from it, or was given up."""
        return await self._read(lambda session: moves.state_of(session, move) is not None)

    async def moved_names(self, names: Collection[Name], since: int) -> set[Name]:
        """Those of names leaving their cell in a move, or in one that has ended since a time (microseconds)."""
        return await self._read(lambda session: placement.moved_names(session, names, since))

    async def placed_now(self, names: Sequence[Name]) -> tuple[dict[Name, Placement], int]:
        """Where these are, of those that the list names, and the number of the last move."""
        return await self._read(lambda session: placement.placed_now(session, names))

    async def let_in(self, names: Sequence[Name], last_move: int) -> None:
        """Lets this cell have names again that had left it by moves up to a number."""
        await self._write(lambda session: placement.let_in(session, names, last_move))

    async def stored_bytes(self) -> int:
        """Bytes of the bodies in all topics of the cell."""
        return await self._read(placement.stored_bytes)
