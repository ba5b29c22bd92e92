"""Where names are: the list of placements, remembered for a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from broker.domain.cell import HOME_NUMBER, Name, Placed, Placement
from broker.errors import AlreadyExists, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.ports.placement import PlacementStore

REMEMBERED_FOR = 2.0
"""Seconds."""
PATIENCE = 0.5
"""Seconds that a call waits for the list, while it is remembered where its names were."""
MOST_REMEMBERED = 50_000
LONGEST_NAME = 376
"""Characters."""
AT_HOME = Placement(HOME_NUMBER)


def group(name: str) -> Name:
    """A consumer group."""
    return Name(Placed.GROUP, name)


def sink(name: str) -> Name:
    """A sink."""
    return Name(Placed.SINK, name)


class Placing:
    """Remembers placements. They are hints: the cell itself refuses what is not there."""

    def __init__(self, store: PlacementStore) -> None:
        """Takes the list of placements."""
        self.store = store
        self._known: dict[Name, tuple[float, Placement]] = {}
        self._overdue: set[asyncio.Task[dict[Name, Placement]]] = set()

    async def find(self, names: Iterable[Name], *, again: bool = False) -> dict[Name, Placement]:
        """Where names are; `again`: whatever is remembered.

        What is in other cells goes on while the home database is away, or slow: whoever waits for it in vain takes what
        is remembered.

        Raises:
            StorageUnavailable: the list cannot be read, and has to be.
        """
        wanted = set(names)
        now = time.monotonic()
        found: dict[Name, Placement] = {}
        for name in wanted:
            if len(name.text) > LONGEST_NAME:
                # Home refuses it, and it takes no memory here.
                found[name] = AT_HOME
            elif not again and (known := self._known.get(name)) is not None and known[0] > now:
                found[name] = known[1]
        missing = wanted - found.keys()
        if not missing:
            return found
        if again or not missing <= self._known.keys():
            return found | await self._read(missing)
        remembered = {name: self._known[name][1] for name in missing}
        return found | remembered | await self._renewed(remembered)

    async def _renewed(self, remembered: dict[Name, Placement]) -> dict[Name, Placement]:
        """Where names are, as far as the list tells it in time."""
        # One call looks for each name; the others go on with what is remembered.
        until = time.monotonic() + REMEMBERED_FOR
        self._known |= {name: (until, placement) for name, placement in remembered.items()}
        if self._overdue:
            return {}
        reading = asyncio.get_running_loop().create_task(self._read(remembered.keys()))
        try:
            await asyncio.wait([reading], timeout=PATIENCE)
        finally:
            if not reading.done():
                self._overdue.add(reading)
                reading.add_done_callback(self._came)
        if not reading.done():
            return {}
        error = reading.exception()
        if error is None:
            return reading.result()
        if not isinstance(error, StorageUnavailable):
            raise error
        return {}

    def _came(self, reading: asyncio.Task[dict[Name, Placement]]) -> None:
        self._overdue.discard(reading)
        if not reading.cancelled():
            # Nobody waits for it any more.
            reading.exception()

    async def _read(self, names: Iterable[Name]) -> dict[Name, Placement]:
        wanted = sorted(names)
        read = await self.store.placements(wanted)
        if len(self._known) > MOST_REMEMBERED:
            # Without the home database nothing that is there is of use.
            self._known = {name: known for name, known in self._known.items() if known[1].cell != HOME_NUMBER}
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        until = time.monotonic() + REMEMBERED_FOR
        found = {name: read.get(name, AT_HOME) for name in wanted}
        self._known |= {name: (until, placement) for name, placement in found.items()}
        return found

    async def place(self, name: Name, cell: int) -> Placement:
        """Places something new; returns where it is, which another broker may have decided.

        Raises:
            AlreadyExists: it is at home.
        """
        try:
            placed = await self.store.place(name, cell)
        except AlreadyExists:
            # Where it was before is of no use.
            self._known.pop(name, None)
            raise
        self._known[name] = time.monotonic() + REMEMBERED_FOR, placed
        return placed

    async def withdraw(self, name: Name, cell: int) -> None:
        """Takes something that is in its cell no more from the list."""
        self._known.pop(name, None)
        await self.store.withdraw(name, cell)
