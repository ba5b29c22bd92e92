"""Two brokers' stores on one database, driven step by step, for the model."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

from broker.domain.check_policy import SECOND
from broker.domain.dead_letter import dead_letter_topic
from broker.domain.group import ExhaustedPolicy, GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from broker.storage.adapters.store import Store
from broker.storage.catalog.directory import Directory
from broker.storage.engine.connection import Database
from broker.storage.tables.schema import metadata
from conformance.world import HOUR, LEASE, POLICY, FakeClock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic

QUEUES = 2
GROUPS = [
    ("billing", GroupSettings(max_attempts=3)),
    ("audit", GroupSettings(2, (2 * SECOND, 7 * SECOND), ExhaustedPolicy.RETRY)),
]
"""Two consumer groups that differ in all that counts for retries."""


class ItemRejected(Exception):
    """The database refused an item, or the code that asked it failed: no rule is at fault."""


class _Rejections(logging.Handler):
    """Remembers what lanes could make nothing of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("the database refused an item"):
            error = record.exc_info[1] if record.exc_info else None
            self.seen.append(f"{record.getMessage()}: {error!r}")


class Rig:
    """Begins again for each example; the connections stay."""

    topic: Topic
    dead: list[Topic]
    groups: list[ConsumerGroup]
    producer: int

    def __init__(self, url: str, table_prefix: str) -> None:
        self.clock = FakeClock()
        self.policy, self.lease_time = POLICY, LEASE
        self._database = Database(url, table_prefix=table_prefix)
        self._runner = asyncio.Runner()
        self._rejections = _Rejections()
        logging.getLogger("halfmq.storage").addHandler(self._rejections)
        self.stores = [
            Store(self._database, broker_id=name, policy=POLICY, clock=self.clock)  # type: ignore[arg-type]
            for name in ("a", "b")
        ]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        done = self._runner.run(work)
        if self._rejections.seen:
            raise ItemRejected(self._rejections.seen[0])
        return done

    def begin(self) -> None:
        """Empties the tables and makes what an example needs."""
        self.clock.time = FakeClock().time
        self._rejections.seen.clear()
        session = self._database.session()
        session.begin()
        for table in metadata.sorted_tables:
            session.run(f"DELETE FROM {table.name}")
        session.commit()
        self._database.release(session)
        for store in self.stores:
            store.directory = Directory()
            # Which queue comes first depends on it, and an example must run the same way again.
            store._rotations = itertools.count()
        self.run(self._make())

    async def _make(self) -> None:
        store = self.stores[0]
        self.topic = await store.create_topic("orders", TopicSettings(QUEUES, HOUR * 1000))
        self.producer = await store.producer_group_id("shop")
        self.groups, self.dead = [], []
        for number, (name, _) in enumerate(GROUPS):
            await self.make_group(number, store)
            dead = await store.find_topic(dead_letter_topic(name))
            assert dead is not None
            self.dead.append(dead)

    async def make_group(self, number: int, store: Store) -> None:
        """Makes a group and joins it."""
        name, settings = GROUPS[number]
        group = await store.create_group(name, settings, TopicSettings(1, HOUR * 1000))
        self.groups[number : number + 1] = [group]
        await store.join(JoinWork(group, [self.topic], "consumer", {}))

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
        logging.getLogger("halfmq.storage").removeHandler(self._rejections)
        self._rejections.seen.clear()
        for store in self.stores:
            self.run(store.close())
        self._database.close()
        self._runner.close()
