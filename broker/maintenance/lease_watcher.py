"""Noticing changes of groups and leases that can be taken, with one cheap query for all groups that wait here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.errors import StorageUnavailable
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from broker.ports.delivery import GroupWatch
    from broker.services.wakeups import Wakeups

INTERVAL = 0.25


class LeaseWatcher(Loop):
    """Wakes the consumers of groups that were changed, or have leases to take: expired ones, and retries now due."""

    name = "lease watcher"

    def __init__(self, store: GroupWatch, wakeups: Wakeups, interval: float = INTERVAL) -> None:
        """Takes the storage, who waits, and the seconds between two looks."""
        super().__init__(interval)
        self._store = store
        self._wakeups = wakeups

    async def run_once(self) -> None:
        """One look at the groups whose consumers wait here."""
        groups = self._wakeups.waiting_groups
        if not groups:
            return
        try:
            await self._look(groups)
        except StorageUnavailable:
            raise
        except Exception as error:
            self._report(self.name, error)
            for group_id, topic_ids in groups.items():
                await self.run_piece(f"group {group_id}", partial(self._look, {group_id: topic_ids}))

    async def _look(self, groups: Mapping[int, Collection[int]]) -> None:
        self._wakeups.told(await self._store.look_at_groups(groups))
