"""Detects releases by other brokers, with one cheap query for all local waiters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.domain.place import Queue
    from broker.ports.log import EndOffsetStore
    from broker.services.wakeups import Wakeups

INTERVAL = 0.05
BUSY_INTERVAL = 0.01
BUSY_FOR = 1.0
QUEUES_PER_SECOND = 40_000
"""That are read at most: where somebody waits for many topics, the polls are fewer."""


class EndOffsetWatcher(Loop):
    """Wakes the waiters of a topic when another broker has released messages to its queues.

    While they grow it polls more often: then low latency matters, and the polls are few compared with the messages.
    """

    name = "end offset watcher"

    def __init__(self, store: EndOffsetStore, wakeups: Wakeups, interval: float = INTERVAL) -> None:
        """Takes the storage, the wake-ups, and the seconds between two polls."""
        super().__init__(interval)
        self._store = store
        self._wakeups = wakeups
        self._longest = interval
        self._grew_at = 0.0

    async def run_once(self) -> None:
        """One poll of the end offsets of all queues that somebody waits for."""
        now = time.monotonic()
        end_offsets: dict[Queue, int] = {}
        if topic_ids := self._wakeups.waiting_topics:
            end_offsets = await self._store.end_offsets(topic_ids)
            if self._wakeups.grown_to(end_offsets, topic_ids):
                self._grew_at = now
        interval = min(self._longest, BUSY_INTERVAL) if now - self._grew_at < BUSY_FOR else self._longest
        self.interval = max(interval, len(end_offsets) / QUEUES_PER_SECOND)
