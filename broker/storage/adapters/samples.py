"""Samples of what the database holds: each statement by itself, on the thread of background work."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.ports.connections import ALIVE
from broker.ports.sampling import StoredState
from broker.storage.adapters.access import Access
from broker.storage.catalog import brokers
from broker.storage.migrations import newest
from broker.storage.sampling import overview, pending, totals
from broker.storage.sampling.lags import Lags

if TYPE_CHECKING:
    from broker.ports.sampling import Overview, PendingOfGroup
    from broker.storage.sampling.lags import Place


class Samples(Access):
    """Implements SampleStore and OverviewStore."""

    async def overview(self) -> Overview:
        """What there is in all, in bounded statements."""
        now, database = self.clock.now(), self._database
        shown = f"{type(database.dialect).__name__} {database.version}".strip()
        return await self._read(lambda session: overview.overview(session, now, shown, newest()))

    async def sample(self) -> StoredState:
        """Looks at what there is, in bounded statements."""
        now = self.clock.now()
        lags = Lags(now)
        place: Place | None = (0, 0)
        while place is not None:
            place = await self._glance(partial(lags.add_progress, after=place))
        lease: int | None = 0
        while lease is not None:
            lease = await self._glance(partial(lags.add_leases, after=lease))
        return StoredState(
            now,
            await self._glance(totals.totals),
            await self._pending(now),
            await self._glance(lags.finish),
            await self._glance(totals.dead_letters),
        )

    async def _pending(self, now: int) -> list[PendingOfGroup]:
        found = await self._glance(lambda session: pending.pending_of_groups(session, now))
        # What brokers report of their clients is large: it is read only where somebody asks for producers.
        if found:
            served = await self._glance(lambda session: brokers.groups_with_producers(session, now - ALIVE))
            for each in found:
                each.has_producer = None if served is None else each.producer_group in served
        return found
