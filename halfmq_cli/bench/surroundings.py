"""Work of a broker and of operators that can meet everything in a database: polls, listings, samples, the doctor."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.maintenance.end_offset_watcher import EndOffsetWatcher
from broker.maintenance.lease_watcher import LeaseWatcher
from broker.ports.delivery import JoinWork
from broker.ports.diagnosis import DiagnosisSettings
from broker.services.wakeups import Wakeups
from broker.storage.diagnosis.examination import CHECKS, examine
from halfmq_cli.bench.bare_storage import FOR_EVER
from halfmq_cli.bench.load import GROUP
from halfmq_cli.bench.long_past import GROUPS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from halfmq_cli.bench.bare_storage import BareStorage

POLLS, LISTED, MADE = 20, 10, 4
"""Of a turn: polls and pages; entries of a page; topics and groups that are made and deleted."""
OF_ALL = "(all there is)"
"""Work that looks at everything by its nature, and so takes longer where there is more."""


class Surroundings:
    """The work on one database.

    Attributes:
        work: by name; each does it once and returns seconds.
    """

    def __init__(self, bare: BareStorage) -> None:
        """Takes a storage that has been started and filled by then."""
        self._bare = bare
        self._wakeups = Wakeups()
        self._ends = EndOffsetWatcher(bare.store, self._wakeups)
        self._leases = LeaseWatcher(bare.store, self._wakeups)
        self._made = 0
        self.work: Mapping[str, Callable[[], Awaitable[float]]] = {
            "polls of end offsets": lambda: self._poll(self._ends.run_once),
            "polls of leases": lambda: self._poll(self._leases.run_once),
            "pages of topics": lambda: self._repeat(lambda: bare.store.list_topics("", LISTED)),
            "pages of groups' lag": self._lags,
            "topics made and deleted": self._make_topics,
            "groups made, joined and deleted": self._make_groups,
            f"overview {OF_ALL}": lambda: self._once(bare.store.overview),
            f"sample for metrics {OF_ALL}": lambda: self._once(bare.store.sample),
            f"doctor {OF_ALL}": lambda: self._once(self._examine),
        }

    async def _poll(self, poll: Callable[[], Awaitable[object]]) -> float:
        """With a consumer that waits for messages."""
        bare = self._bare
        with self._wakeups.listen([bare.topic.topic_id], bare.group.group_id):
            return await self._repeat(poll)

    async def _repeat(self, what: Callable[[], Awaitable[object]]) -> float:
        start = time.perf_counter()
        for _ in range(POLLS):
            await what()
        return time.perf_counter() - start

    async def _once(self, what: Callable[[], Awaitable[object]]) -> float:
        start = time.perf_counter()
        await what()
        return time.perf_counter() - start

    async def _lags(self) -> float:
        store = self._bare.store
        found = [await store.find_group(name) for name in [GROUP, *[f"past-{number}" for number in range(GROUPS)]]]
        groups = [group for group in found if group is not None][:LISTED]
        return await self._repeat(lambda: store.group_lags(groups, None))

    async def _make_topics(self) -> float:
        store = self._bare.store
        start = time.perf_counter()
        for _ in range(MADE):
            self._made += 1
            await store.delete_topic(await store.create_topic(f"new-{self._made}", TopicSettings(1, FOR_EVER)))
        return time.perf_counter() - start

    async def _make_groups(self) -> float:
        store, topic = self._bare.store, self._bare.topic
        start = time.perf_counter()
        for _ in range(MADE):
            self._made += 1
            group = await store.create_group(f"new-{self._made}", GroupSettings(), TopicSettings(1, FOR_EVER))
            await store.delete_group(await store.join(JoinWork(group, [topic], "bench", {})))
        return time.perf_counter() - start

    async def _examine(self) -> None:
        names = [check.name for check in CHECKS]
        await asyncio.to_thread(lambda: list(examine(self._bare.database, DiagnosisSettings(), names)))
