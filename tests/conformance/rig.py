"""Two brokers' stores on one database, driven step by step, for the model."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.services.work import JoinWork
from broker.storage.directory import Directory
from broker.storage.engine import Database
from broker.storage.schema import metadata
from broker.storage.store import Store
from conformance.world import HOUR, LEASE, POLICY, FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic

QUEUES = 2
MAX_ATTEMPTS = 3


class Rig:
    """Begins anew for each example; the connections stay."""

    topic: Topic
    dead: Topic
    group: ConsumerGroup
    producer: int

    def __init__(self, url: str) -> None:
        self.clock = FakeClock()
        self.policy, self.lease_time = POLICY, LEASE
        self._database = Database(url)
        self._runner = asyncio.Runner()
        self.stores = [
            Store(self._database, broker_id=name, policy=POLICY, clock=self.clock)  # type: ignore[arg-type]
            for name in ("a", "b")
        ]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def begin(self) -> None:
        """Empties the tables and makes what an example needs."""
        self.clock.time = FakeClock().time
        session = self._database.session()
        session.begin()
        for table in metadata.sorted_tables:
            session.run(f"DELETE FROM {table.name}")
        session.commit()
        self._database.release(session)
        for store in self.stores:
            store.directory = Directory()
            # Which queue comes first depends on it, and an example must run the same way again.
            store._turns = itertools.count()
        self.run(self._make())

    async def _make(self) -> None:
        store = self.stores[0]
        self.topic = await store.create_topic("orders", TopicSettings(QUEUES, HOUR * 1000))
        self.group = await store.create_group("billing", GroupSettings(MAX_ATTEMPTS), TopicSettings(1, HOUR * 1000))
        dead = await store.find_topic("%DLQ%billing")
        assert dead is not None
        self.dead = dead
        self.producer = await store.producer_group_id("shop")
        await store.join(JoinWork(self.group, [self.topic], "consumer", {}))

    def leases(self) -> int:
        """Leases in the table."""
        session = self._database.session()
        session.begin(write=False)
        (count,) = session.fetch("SELECT COUNT(*) FROM lease")[0]
        session.rollback()
        self._database.release(session)
        return int(count)

    def miscounted(self) -> list[int]:
        """Queues that claim to hold other bytes than those of their messages."""
        session = self._database.session()
        session.begin(write=False)
        found = session.fetch(
            "SELECT q.queue_id FROM queue q WHERE q.stored_bytes <>"
            " COALESCE((SELECT SUM(m.size) FROM message m WHERE m.queue_id = q.queue_id), 0)"
        )
        session.rollback()
        self._database.release(session)
        return [row[0] for row in found]

    def close(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self._database.close()
        self._runner.close()
