"""Noticing what other brokers released, with one cheap query for all who wait here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.ports.log import EndOffsetStore
    from broker.services.wakeups import Wakeups

INTERVAL = 0.05
BUSY_INTERVAL = 0.01
BUSY_FOR = 1.0


class EndOffsetWatcher(Loop):
    """Wakes those who wait for a topic when its queues have grown on another broker.

    While they grow it looks more often: where messages flow, each should come soon, and the looks are few among them.
    """

    name = "end offset watcher"

    def __init__(self, store: EndOffsetStore, wakeups: Wakeups, interval: float = INTERVAL) -> None:
        """Takes the storage, who waits, and the seconds between two looks."""
        super().__init__(interval)
        self._store = store
        self._wakeups = wakeups
        self._longest = interval
        self._grew_at = 0.0

    async def run_once(self) -> None:
        """One look at all queues' end_offsets, if anybody waits."""
        now = time.monotonic()
        if self._wakeups.waiting and self._wakeups.grown_to(await self._store.end_offsets()):
            self._grew_at = now
        self.interval = min(self._longest, BUSY_INTERVAL) if now - self._grew_at < BUSY_FOR else self._longest
