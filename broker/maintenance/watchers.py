"""Noticing what other brokers did, with one cheap query for all who wait here."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.errors import StorageUnavailable
from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from broker.ports.delivery import LeaseStore
    from broker.ports.log import LogStore
    from broker.services.wakeups import Wakeups

HEAD_INTERVAL = 0.05
BUSY_HEAD_INTERVAL = 0.01
BUSY_FOR = 1.0
LEASE_INTERVAL = 0.25
CLOCK_INTERVAL = 5.0


class HeadWatcher(Loop):
    """Wakes those who wait for a topic when its queues have grown on another broker.

    While they grow it looks more often: where messages flow, each should come soon, and the looks are few among them.
    """

    name = "head watcher"

    def __init__(self, store: LogStore, wakeups: Wakeups, interval: float = HEAD_INTERVAL) -> None:
        """Takes the storage, who waits, and the seconds between two looks."""
        super().__init__(interval)
        self._store = store
        self._wakeups = wakeups
        self._longest = interval
        self._grew_at = 0.0

    async def run_once(self) -> None:
        """One look at all queues' heads, if anybody waits."""
        now = time.monotonic()
        if self._wakeups.waiting and self._wakeups.grown_to(await self._store.queue_heads()):
            self._grew_at = now
        self.interval = min(self._longest, BUSY_HEAD_INTERVAL) if now - self._grew_at < BUSY_FOR else self._longest


class LeaseWatcher(Loop):
    """Wakes the consumers of groups that were changed, or have leases to take: expired ones, and retries now due."""

    name = "lease watcher"

    def __init__(self, store: LeaseStore, wakeups: Wakeups, interval: float = LEASE_INTERVAL) -> None:
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
            self._tell(self.name, error)
            for group_id, topic_ids in groups.items():
                await self.go_on(f"group {group_id}", partial(self._look, {group_id: topic_ids}))

    async def _look(self, groups: Mapping[int, Collection[int]]) -> None:
        self._wakeups.told(await self._store.look_at_groups(groups))


class ClockStore(Protocol):
    """What the synchroniser asks of the storage."""

    async def synchronise_clock(self) -> None:
        """Reads the database's time again."""
        ...


class ClockSynchroniser(Loop):
    """Keeps this broker's idea of the database's time right."""

    name = "clock"

    def __init__(self, store: ClockStore, interval: float = CLOCK_INTERVAL) -> None:
        """Takes the storage and the seconds between two readings."""
        super().__init__(interval)
        self._store = store

    async def run_once(self) -> None:
        """One reading."""
        await self._store.synchronise_clock()
