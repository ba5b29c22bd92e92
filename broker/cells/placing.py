"""Where names are: the list of placements, remembered for a moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from broker.domain.cell import HOME_NUMBER, Name, Placed, Placement
from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.errors import StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.ports.placement import PlacementStore

REMEMBERED_FOR = 2.0
"""Seconds."""
SOON = 0.25
"""Seconds for which what is remembered is read again, before it is used as it is."""
MOST_REMEMBERED = 50_000
LONGEST_NAME = 376
"""Characters."""
AT_HOME = Placement(HOME_NUMBER)


def topic(name: str) -> Name:
    """A topic; that of a group's dead letters is where the group is."""
    if name.startswith(DEAD_LETTER_PREFIX):
        return Name(Placed.GROUP, name.removeprefix(DEAD_LETTER_PREFIX))
    return Name(Placed.TOPIC, name)


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
        self._away_until = 0.0

    async def find(self, names: Iterable[Name], *, again: bool = False) -> dict[Name, Placement]:
        """Where names are; `again`: whatever is remembered."""
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
        if missing:
            read = await self._read(missing, patiently=again or not missing <= self._known.keys())
            if read is None:
                return found | {name: self._known[name][1] for name in missing}
            if len(self._known) > MOST_REMEMBERED:
                self._known.clear()
            for name in missing:
                found[name] = read.get(name, AT_HOME)
                self._known[name] = now + REMEMBERED_FOR, found[name]
        return found

    async def _read(self, names: set[Name], *, patiently: bool) -> dict[Name, Placement] | None:
        """What the list says; None when it cannot be read soon, and what is remembered will do.

        So what is in other cells goes on without the home database.
        """
        if patiently:
            return await self.store.placements(sorted(names))
        if time.monotonic() < self._away_until:
            return None
        try:
            async with asyncio.timeout(SOON):
                return await self.store.placements(sorted(names))
        except (StorageUnavailable, TimeoutError):
            self._away_until = time.monotonic() + REMEMBERED_FOR
            return None

    async def place(self, name: Name, cell: int) -> Placement:
        """Places something new; returns where it is, which another broker may have decided."""
        placed = await self.store.place(name, cell)
        self._known[name] = time.monotonic() + REMEMBERED_FOR, placed
        return placed

    async def withdraw(self, name: Name) -> None:
        """Takes something that was deleted from the list."""
        self._known.pop(name, None)
        await self.store.withdraw(name)
