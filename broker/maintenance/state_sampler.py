"""Samples what the database holds, for metrics, on one broker at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.maintenance.turn_keeper import Turn
    from broker.ports.sampling import SampleStore, SampleTaker

TASK = "metrics"
TOLD = 3
"""Intervals for which a sample is told."""
MOST_OF_TIME = 0.1
"""The share of its time that it works at most: a sample that takes long makes the next one come later."""
LONGEST = 300.0
"""Seconds between two samples at most."""


class StateSampler(Loop):
    """Takes a sample in each round, if it is this broker's turn, so that sums over brokers are right."""

    name = "state sampler"

    def __init__(
        self,
        store: SampleStore,
        taker: SampleTaker,
        turn: Turn,
        interval: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the samples every `interval` seconds.

        Args:
            store: where they are taken.
            taker: what they are for.
            turn: whether it is this broker's.
            interval: seconds between two of them.
            monotonic: a clock, in seconds.
        """
        super().__init__(interval)
        self._monotonic = monotonic
        self._store = store
        self._taker = taker
        self._turn = turn
        turn.loop = self
        self._shortest = interval

    async def run_once(self) -> None:
        """One sample."""
        if self._taker.lacks_names:
            self._taker.name_groups(await self._store.producer_groups())
        if not self._has_turn():
            return
        began = self._monotonic()
        state = await self._store.sample()
        took = self._monotonic() - began
        self.interval = max(self._shortest, min(LONGEST, took / MOST_OF_TIME))
        # Another broker has the turn by now if this one stood still.
        if self._has_turn():
            self._taker.take_sample(state, TOLD * self.interval)

    def _has_turn(self) -> bool:
        """Whether it is this broker's turn; if it is not, nothing is told of an earlier sample."""
        if self._turn.mine:
            return True
        self.interval = self._shortest
        self._taker.take_sample(None)
        return False
