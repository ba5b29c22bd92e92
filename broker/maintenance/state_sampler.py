"""Samples what the database holds, for metrics, on one broker at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.ports.sampling import SampleStore, SampleTaker

TASK = "metrics"
MOST_OF_TIME = 0.1
"""The share of its time that it works at most: a sample that takes long makes the next one come later."""


class StateSampler(Loop):
    """Takes a sample in each round, if it is this broker's turn, so that sums over brokers are right."""

    name = "state sampler"

    def __init__(self, store: SampleStore, taker: SampleTaker, interval: float) -> None:
        """Takes the storage, what the samples are for, and the seconds between two of them."""
        super().__init__(interval)
        self._store = store
        self._taker = taker
        self._shortest = interval

    async def run_once(self) -> None:
        """One sample."""
        if self._taker.lacks_names:
            self._taker.name_groups(await self._store.producer_groups())
        if not await self._store.take_maintenance_lock(TASK, int(3 * self.interval * 1_000_000)):
            self._taker.take_sample(None)
            return
        began = time.monotonic()
        self._taker.take_sample(await self._store.sample())
        self.interval = max(self._shortest, (time.monotonic() - began) / MOST_OF_TIME)
