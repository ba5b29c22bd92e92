"""Tells whether this broker is ready: whether its database can be used, and has the tables."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from broker.errors import StorageUnavailable
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.ports.upkeep import ReadinessStore

logger = logging.getLogger("halfmq.maintenance")

INTERVAL = 1.0
LATE = 5.0
"""Seconds without an answer after which the database does not count as usable."""


async def _nobody(_: bool) -> None:
    return


class ReadinessWatcher(Loop):
    """Looks at the tables every second, with one look under way at most.

    A connection that is lost alone is replaced within milliseconds: it takes two rounds in a row that find the database
    away until the broker is not ready.

    Attributes:
        ready: the last state; a broker begins after it has used the database, so it begins ready.
        tell: called with each new state.
    """

    name = "readiness"

    def __init__(self, store: ReadinessStore, interval: float = INTERVAL) -> None:
        """Takes the storage and the seconds between two looks."""
        super().__init__(interval)
        self.ready = True
        self.tell: Callable[[bool], Awaitable[None]] = _nobody
        self._store = store
        self._look: asyncio.Task[None] | None = None
        self._began = 0.0
        self._was_away = False

    async def run_once(self) -> None:
        """One look, or a part of one that takes longer than the interval."""
        if self._look is None:
            self._look, self._began = asyncio.create_task(self._store.look_at_tables()), time.monotonic()
        await asyncio.wait({self._look}, timeout=self.interval)
        was_away, self._was_away = self._was_away, self._store.database_away
        away = was_away and self._was_away
        if not self._look.done():
            if away or time.monotonic() - self._began >= LATE:
                await self._set(ready=False)
            return
        look, self._look = self._look, None
        error = look.exception()
        if error is not None and not isinstance(error, StorageUnavailable) and self.ready:
            # The storage logs outages; this is something else.
            logger.warning("this broker is not ready, its tables cannot be read: %s", error)
        await self._set(ready=error is None and not away)

    async def stop(self) -> None:
        """Stops, and gives a look under way up."""
        await super().stop()
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
            self._look = None

    async def _set(self, *, ready: bool) -> None:
        if ready is not self.ready:
            self.ready = ready
            await self.tell(ready)
