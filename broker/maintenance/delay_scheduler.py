"""Releases scheduled messages when they are due.

Every broker knows the times of the messages that it stored itself, and wakes up for them exactly. Those of other
brokers, which may have died since, are found by one cheap query a second. A database lock decides which broker moves
the due messages; the others find nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.domain.clock import Clock
    from broker.ports.upkeep import ScheduleStore
    from broker.services.wakeups import Wakeups

logger = logging.getLogger("halfmq.scheduler")

LOOK_INTERVAL = 1.0
PAUSE = 0.01
"""Seconds between two moves; messages that become due meanwhile are moved together."""
BUSY_PAUSE = 0.05


class DelayScheduler(Loop):
    """Moves scheduled messages into the log when they are due, and wakes the waiters."""

    name = "delay scheduler"

    def __init__(
        self, store: ScheduleStore, wakeups: Wakeups, clock: Clock, look_interval: float = LOOK_INTERVAL
    ) -> None:
        """Takes the storage, the wake-ups, the database's clock, and the seconds between two queries."""
        super().__init__(look_interval)
        self._store = store
        self._wakeups = wakeups
        self._clock = clock
        self._look_interval = look_interval
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        wakeups.on_scheduled = self.expect

    def expect(self, due: int) -> None:
        """Called when this broker has stored a message that is due at this time (microseconds)."""
        if self._timer is None or due < self._timer_due:
            self._wake_at(due)

    async def run_once(self) -> None:
        """Moves due messages, then sets the time of the next round."""
        known = False
        while True:
            moved = await self._store.move_due(known=known)
            known = True
            self._wakeups.released(moved.end_offsets)
            if moved.dropped:
                logger.warning("%d scheduled messages were dropped: their topic was deleted", moved.dropped)
            if moved.busy or moved.next_due is None or moved.next_due > self._clock.now():
                break
        self.interval = BUSY_PAUSE if moved.busy else self._look_interval
        if moved.next_due is not None:
            # Not later than messages stored during the query.
            self.expect(moved.next_due)

    async def stop(self) -> None:
        """Stops; a move in flight may or may not take effect."""
        self._cancel_timer()
        await super().stop()

    def _wake_at(self, due: int) -> None:
        self._cancel_timer()
        left = max(PAUSE, (due - self._clock.now()) / 1_000_000)
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_later(left, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.poke()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
