"""Releases submissions: messages that applications inserted into the broker's database and committed.

Any broker may do it; a lock in the database decides which one does. The others look seldom. So does one whose query
takes long, because the server cannot purge what was deleted while an old snapshot is open: a tenth of the time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.producing.submissions import SubmissionService

LOOK_INTERVAL = 0.1
"""Seconds between two queries by primary key; a message waits for half of it on average."""
GATHER_INTERVAL = 0.025
"""The same after one that found some: what is committed meanwhile is released together, which costs less for each."""
IDLE_INTERVAL = 1.0
"""The same after some time without any: most brokers never have one."""
IDLE_AFTER = 60.0
LONGEST_INTERVAL = 2.0
PAUSES = 9
"""A pause is at least so many times as long as the query before it, up to the longest interval."""
BUSY_INTERVAL = 0.5
"""The same while another broker is at it: one that stopped is followed within 5 s of that."""


class SubmissionReleaser(Loop):
    """Releases what is committed."""

    name = "submission releaser"

    def __init__(self, service: SubmissionService, look_interval: float = LOOK_INTERVAL) -> None:
        """Takes the service, and the seconds between two queries."""
        super().__init__(look_interval)
        self._service = service
        self._look_interval = look_interval
        self._found_at = -IDLE_AFTER

    async def run_once(self) -> None:
        """Releases part after part, up to what is committed by then."""
        self.interval = self._look_interval
        while True:
            began = time.monotonic()
            released = await self._service.release()
            if not released:
                break
            self._found_at = time.monotonic()
            if not self._service.has_more:
                self.interval = GATHER_INTERVAL
                return
        taken = time.monotonic() - began
        idle = began - self._found_at >= IDLE_AFTER
        pause = BUSY_INTERVAL if released is None else IDLE_INTERVAL if idle else self._look_interval
        self.interval = max(pause, min(PAUSES * taken, LONGEST_INTERVAL))
