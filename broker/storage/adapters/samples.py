"""Samples of what the database holds: each statement by itself, on the thread of background work."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.ports.sampling import StoredState
from broker.storage.adapters.access import Access
from broker.storage.sampling import pending, totals
from broker.storage.sampling.lags import Lags

if TYPE_CHECKING:
    from broker.storage.sampling.lags import Place


class Samples(Access):
    """Implements SampleStore."""

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
            await self._glance(lambda session: pending.pending_of_groups(session, now)),
            await self._glance(lags.finish),
            await self._glance(totals.dead_letters),
        )
