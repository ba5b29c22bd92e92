"""Releases submissions: messages that applications inserted into the broker's database and committed.

Any broker may do it; a lock in the database decides which one does. The others look seldom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.services.producing.submissions import SubmissionService

LOOK_INTERVAL = 0.1
"""Seconds between two queries by primary key; a message waits for half of it on average."""
BUSY_INTERVAL = 1.0
"""The same while another broker is at it."""


class SubmissionReleaser(Loop):
    """Releases what is committed, until nothing is left."""

    name = "submission releaser"

    def __init__(self, service: SubmissionService, look_interval: float = LOOK_INTERVAL) -> None:
        """Takes the service, and the seconds between two queries."""
        super().__init__(look_interval)
        self._service = service
        self._look_interval = look_interval

    async def run_once(self) -> None:
        """Releases part after part."""
        while released := await self._service.release():
            pass
        self.interval = BUSY_INTERVAL if released is None else self._look_interval
