"""Synchronises this broker's clock with the database's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.ports.upkeep import ClockStore

INTERVAL = 5.0


class ClockSynchroniser(Loop):
    """Synchronises this broker's clock with the database's."""

    name = "clock"

    def __init__(self, store: ClockStore, interval: float = INTERVAL) -> None:
        """Takes the storage and the seconds between two readings."""
        super().__init__(interval)
        self._store = store

    async def run_once(self) -> None:
        """One reading."""
        await self._store.synchronise_clock()
