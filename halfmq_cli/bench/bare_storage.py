"""A broker's storage in this process: its statements and batches, without a protocol and without background loops."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from broker.domain.check_policy import CheckPolicy
from broker.domain.group import GroupSettings
from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.domain.transaction import VerdictSource
from broker.errors import BrokerError
from broker.ports.delivery import AckWork, ClaimWork, JoinWork
from broker.ports.log import SendWork
from broker.ports.transactions import Half, PrepareWork, VerdictWork
from broker.services.ids import new_id
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.migrations import migrate
from halfmq_cli.bench.load import GROUP, TOPIC, body_of, marked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.engine.connection import Database

Outcome = TypeVar("Outcome")

FOR_EVER = 10**15
"""Microseconds that are longer than any measurement."""
LEASE_TIME = 30_000_000
MOST_BYTES = 4 << 20


def succeeded(outcomes: Sequence[Outcome | BrokerError]) -> list[Outcome]:
    """The outcomes of work of which all has to succeed; raises the first error."""
    done: list[Outcome] = []
    for each in outcomes:
        if isinstance(each, BrokerError):
            raise each
        done.append(each)
    return done


class BareStorage:
    """The storage of one broker on a database of its own, with a topic, a producer group and a consumer group."""

    def __init__(self, url: str, *, size: int, queues: int, keys: int = 0) -> None:
        """Creates the tables.

        Args:
            url: the database.
            size: bytes of each body.
            queues: of the topic.
            keys: business keys of each message, all different.
        """
        self.database: Database = open_database(url, answer_timeout=300, allow_unsafe=True)[0]
        migrate(self.database)
        self.policy = CheckPolicy(first_check=0, interval=3600 * 1_000_000, max_checks=1000)
        self.store = Store(self.database, broker_id="bench", policy=self.policy)
        self._queues = queues
        self._keys = keys
        self._body = marked(0, body_of(size))
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Creates the topic and the groups."""
        await self.store.start()
        self.topic: Topic = await self.store.create_topic(TOPIC, TopicSettings(self._queues, FOR_EVER))
        self.producer_group = await self.store.producer_group_id(GROUP)
        self.group = await self.new_group(GROUP)

    async def close(self) -> None:
        """Waits for work, and closes all connections."""
        await self.store.close()
        self.database.close()

    async def new_group(self, name: str) -> ConsumerGroup:
        """A consumer group that has joined the topic."""
        group = await self.store.create_group(name, GroupSettings(), TopicSettings(1, FOR_EVER))
        return await self.store.join(JoinWork(group, [self.topic], "bench", {}))

    def message(self, deliver_at: int | None = None, keys: int | None = None) -> Message:
        """A new message; with so many keys, if not as all."""
        count = self._keys if keys is None else keys
        new = tuple(f"order-{next(self._numbers):010}" for _ in range(count))
        return Message(TOPIC, self._body, keys=new, deliver_at=deliver_at)

    async def prepare(self, count: int) -> list[bytes]:
        """Stores transactions of one half message, all at once; returns their ids."""
        work = [
            PrepareWork(new_id(), self.producer_group, [Half(self.topic.topic_id, None, self.message())])
            for _ in range(count)
        ]
        succeeded(await self.store.prepare(work))
        return [item.transaction_id for item in work]

    async def decide(self, ids: Sequence[bytes], *, commit: bool = True) -> None:
        """Commits transactions, or rolls them back, all at once."""
        succeeded(await self.store.decide([VerdictWork(each, commit, VerdictSource.PRODUCER) for each in ids]))

    async def transact(self, count: int) -> None:
        """Prepares and commits transactions: all halves at once, then all verdicts."""
        await self.decide(await self.prepare(count))

    async def send(self, count: int, deliver_at: int | None = None, keys: int | None = None) -> list[SendWork]:
        """Sends ordinary messages, all at once; returns what was sent."""
        work = [SendWork(new_id(), self.topic.topic_id, None, self.message(deliver_at, keys)) for _ in range(count)]
        succeeded(await self.store.send(work))
        return work

    async def consume(self, count: int, group: ConsumerGroup | None = None) -> None:
        """Claims and acknowledges messages, as many at a time as are there."""
        reader = group or self.group
        left = count
        while left:
            work = ClaimWork(reader, [self.topic], "bench", left, MOST_BYTES, LEASE_TIME)
            (claimed,) = succeeded(await self.store.claim([work]))
            acks = [AckWork(part.lease_id, part.token, [m.offset for m in part.messages]) for part in claimed.parts]
            taken = sum(len(each.offsets) for each in acks)
            if not taken:
                raise RuntimeError(f"{left} of {count} messages are not there")
            succeeded(await self.store.settle(acks))
            left -= taken

    def change(self, sql: str, values: Sequence[object] = ()) -> int:
        """Runs one statement in a database transaction of its own; returns the number of changed rows."""
        session = self.database.session()
        session.begin()
        changed = session.run(sql, tuple(values))
        session.commit()
        self.database.release(session)
        return changed
