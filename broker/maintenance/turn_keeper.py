"""Keeps this broker's turns for work that one broker does at a time, and takes those of brokers that are gone."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.ports.upkeep import TurnStore

INTERVAL = 1.0
HOLD = 3_500_000
"""Microseconds for which a turn is kept: with the interval, a broker that is gone is followed within 5 s."""


def _elapsed() -> float:
    # Continues while the machine sleeps.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Turn:
    """Whether it is this broker's turn for a task.

    Attributes:
        task: its name.
        loop: does it.
    """

    def __init__(self, task: str, clock: Callable[[], float] = _elapsed) -> None:
        """It is not, until the keeper has it; `clock`: in seconds."""
        self.task = task
        self.loop: Loop | None = None
        self._clock = clock
        self._until = 0.0
        self._was = False

    @property
    def mine(self) -> bool:
        """Whether it is. Not after this process stood still for longer than the turn was kept."""
        return self._clock() < self._until

    async def take(self, store: TurnStore, hold: int) -> None:
        """Takes it if it is free, or keeps it, for `hold` microseconds. Who does the task begins, or ends, at once."""
        asked = self._clock()
        try:
            self._until = asked + hold / 1e6 if await store.take_turn(self.task, hold) else 0.0
        finally:
            if self.mine is not self._was:
                self._was = self.mine
                if self.loop is not None:
                    self.loop.poke()


class TurnKeeper(Loop):
    """Takes and keeps turns."""

    name = "turns"

    def __init__(
        self, store: TurnStore, turns: Sequence[Turn], *, interval: float = INTERVAL, hold: int = HOLD
    ) -> None:
        """Takes the storage, the turns, the seconds between two rounds, and the microseconds that a turn is kept."""
        super().__init__(interval)
        self._store = store
        self._turns = list(turns)
        self._hold = hold

    def add(self, turn: Turn) -> None:
        """Takes and keeps a further one."""
        self._turns.append(turn)

    async def run_once(self) -> None:
        """Takes each turn that is free, and keeps its own."""
        for turn in self._turns:
            await self.run_piece(f"the turn for {turn.task}", partial(turn.take, self._store, self._hold))
