"""Detects changes of groups and available leases, with one cheap query for all groups with local waiters."""

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
    """Wakes the consumers of groups that were changed, or have available leases: expired ones, and due retries."""

    name = "lease watcher"

    def __init__(self, store: GroupWatch, wakeups: Wakeups, interval: float = INTERVAL) -> None:
        """Takes the storage, the wake-ups, and the seconds between two polls."""
        super().__init__(interval)
        self._store = store
        self._wakeups = wakeups

    async def run_once(self) -> None:
        """One poll of the groups with local waiters."""
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
