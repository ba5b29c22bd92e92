"""Looks every second which of the database's servers accepts writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.ports.upkeep import PrimaryStore

INTERVAL = 1.0


class PrimaryWatcher(Loop):
    """Has connections to a former primary cut, which would wait, or read what is old."""

    name = "primary"

    def __init__(self, store: PrimaryStore, interval: float = INTERVAL) -> None:
        """Takes the storage and the seconds between two looks."""
        super().__init__(interval)
        self._store = store

    async def run_once(self) -> None:
        """One look."""
        await self._store.look_for_primary()
