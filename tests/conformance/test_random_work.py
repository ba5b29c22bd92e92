"""Random transactions and sends through two brokers on one database: each message is where its verdict says, once.

`HALFMQ_RANDOM_SECONDS=60` runs it for a minute on each database; `HALFMQ_RANDOM_SEED` chooses other work.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.place import InLog
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import RowsLocked
from broker.ports.transactions import PrepareWork, TransactionOutcome
from conformance.world import (
    HOUR,
    POLICY,
    World,
    commit,
    everywhere,
    half,
    log_of,
    new_id,
    rollback,
    sending,
    stored_bytes_are_exact,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

SECONDS = float(os.environ.get("HALFMQ_RANDOM_SECONDS") or 4)
SEED = int(os.environ.get("HALFMQ_RANDOM_SEED") or 1)
TASKS = 8
TRIES = 50
OFTEN = replace(POLICY, max_checks=1000)
"""Nothing is parked, however long it takes."""

pytestmark = pytest.mark.timeout(600 + 2 * SECONDS)


@dataclass
class Work:
    """What tasks did: bodies of each transaction, by position, and every outcome of its verdicts; places of sends."""

    bodies: dict[bytes, list[str]] = field(default_factory=dict)
    outcomes: dict[bytes, list[TransactionOutcome]] = field(default_factory=dict)
    sent: dict[str, set[InLog]] = field(default_factory=dict)


async def answered(ask: Callable[[], Awaitable[Sequence[Any]]]) -> Sequence[Any]:
    """Asks until nothing is refused because others hold rows, or a broker gave up waiting for them."""
    for _ in range(TRIES):
        outcomes = await ask()
        if not any(isinstance(each, RowsLocked) for each in outcomes):
            return outcomes
        await asyncio.sleep(0.01)
    pytest.fail(f"refused {TRIES} times: {outcomes}")


class Tasks:
    """Tasks that use one of two brokers at random, mostly the first one."""

    def __init__(
        self, stores: Sequence[Store], topics: Sequence[Topic], group: int, pass_time: Callable[[int], None]
    ) -> None:
        self._random = random.Random(SEED)
        self._pass_time = pass_time
        self._stores, self._topics, self._group = stores, topics, group
        self._numbers = iter(range(1_000_000_000))
        self.work = Work()

    def _store(self) -> Store:
        return self._stores[self._random.random() < 0.2]

    def _body(self) -> str:
        return f"{next(self._numbers)}"

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            if self._chance(0.4):
                await self._send()
            else:
                await self._transact()

    async def _send(self) -> None:
        """Messages, of which some are sent again, through any broker."""
        topic = self._random.choice(self._topics)
        work = [sending(topic, self._body(), queue_no=None) for _ in range(self._random.choice([1, 1, 3]))]
        for _ in range(1 + self._chance(0.2)):
            store = self._store()
            places = await answered(lambda store=store: store.send(work))  # type: ignore[misc]
            for item, place in zip(work, places, strict=True):
                assert isinstance(place, InLog), place
                self.work.sent.setdefault(item.message.body.decode(), set()).add(place)

    async def _transact(self) -> None:
        """Transactions, some with messages that come later, some checked, decided together, some of them twice."""
        ids = [await self._prepare() for _ in range(self._random.choice([1, 1, 2, 3]))]
        if self._chance(0.2):
            self._pass_time(POLICY.first_check)
            await self._store().claim_checks([self._group], OFTEN, 5)
        verdicts = [(rollback if self._chance(0.25) else commit)(each) for each in ids]
        asked = [verdicts]
        if self._chance(0.2):
            asked.append([(rollback if self._chance(0.5) else commit)(each) for each in ids])
        stores = [self._store() for _ in asked]
        found = await asyncio.gather(
            *[
                answered(lambda store=store, some=some: store.decide(some))  # type: ignore[misc]
                for store, some in zip(stores, asked, strict=True)
            ]
        )
        for outcomes in found:
            for own, outcome in zip(ids, outcomes, strict=True):
                if isinstance(outcome, TransactionOutcome):
                    self.work.outcomes.setdefault(own, []).append(outcome)

    async def _prepare(self) -> bytes:
        own, topic = new_id(), self._random.choice(self._topics)
        bodies: list[str] = []
        for _ in range(self._random.choice([1, 1, 1, 2, 3])):
            some = [self._body() for _ in range(self._random.choice([1, 1, 2]))]
            item = PrepareWork(own, self._group, [half(topic, body) for body in some], first_position=len(bodies))
            store = self._store()
            (outcome,) = await answered(lambda store=store, item=item: store.prepare([item]))  # type: ignore[misc]
            assert isinstance(outcome, TransactionOutcome), outcome
            bodies += some
        self.work.bodies[own] = bodies
        return own


async def test_every_message_is_where_its_verdict_says(world: World) -> None:
    stores = [world.broker("one"), world.broker("two")]
    topics = [await stores[0].create_topic(f"t{count}", TopicSettings(count, HOUR)) for count in (1, 2)]
    group = await stores[0].producer_group_id("shop")
    assert await stores[1].producer_group_id("shop") == group
    tasks = Tasks(stores, topics, group, world.clock.pass_time)
    until = time.monotonic() + SECONDS
    await asyncio.gather(*[tasks.run(until) for _ in range(TASKS)])
    work = tasks.work
    logged: dict[bytes, list[str]] = {}
    places: dict[str, list[InLog]] = {}
    for topic in topics:
        for message in await everywhere(stores[0], topic):
            body = message.body.decode()
            logged.setdefault(message.transaction_id, []).append(body)
            places.setdefault(body, []).append(InLog(topic.queue_ids[message.queue_no], message.offset))
        for number in range(topic.queue_count):
            offsets = [each.offset for each in await log_of(stores[0], topic, number)]
            assert offsets == list(range(len(offsets)))
    for own, bodies in work.bodies.items():
        ((state, released),) = {(each.state, tuple(each.released)) for each in work.outcomes[own]}
        committed = state is TransactionState.COMMITTED
        assert sorted(logged.get(own, [])) == (sorted(bodies) if committed else []), SEED
        assert [place for body in bodies for place in places.get(body, [])] == list(released), SEED
    for body, told in work.sent.items():
        assert places[body] == list(told), SEED
    assert world.count("half_message") == 0
    assert world.count("op_record") == len(work.bodies) + len({each for some in work.sent.values() for each in some})
    stored_bytes_are_exact(world)
    assert len(work.bodies) > 20
