"""A producer that never answers, alone of its group on one broker, while one that answers is on another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.maintenance.transaction_checker import TURNS_OF_OTHERS, TransactionChecker
from broker.services.producing.check_sessions import CheckSession, CheckSessions
from conformance.world import POLICY, World, prepared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


class Broker:
    """The check-back of one broker, with one producer."""

    def __init__(self, world: World, store: Store, group_id: int, *, answers: bool) -> None:
        self.asked: list[int] = []
        self._answers = answers
        self._session = CheckSession("answers" if answers else "mute")
        self._sessions = CheckSessions()
        self._sessions.admit(self._session, group_id)
        self.checker = TransactionChecker(store, self._sessions, POLICY, world.clock)
        self._serving = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        async for check in self._session.outgoing():
            self.asked.append(check.check_number)
            if self._answers:
                self._session.answered(check.transaction_id)

    async def close(self) -> None:
        self._sessions.end(self._session)
        await self._serving


@pytest.fixture
async def brokers(world: World, store: Store, topic: Topic) -> AsyncIterator[tuple[Broker, Broker]]:
    shop = await store.producer_group_id("shop")
    made = Broker(world, store, shop, answers=False), Broker(world, store, shop, answers=True)
    yield made
    for each in made:
        await each.close()


async def test_the_one_that_answers_gets_the_checks_though_the_other_broker_looks_first(
    world: World, store: Store, topic: Topic, brokers: tuple[Broker, Broker]
) -> None:
    mute, answers = brokers
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check)
    for _ in range(POLICY.max_checks):
        for broker in brokers:
            await broker.checker.check_due()
        world.clock.pass_time(POLICY.interval)
    # Its silence shows when it is to be asked about the same transaction again.
    assert mute.asked == [1, 2]
    assert answers.asked == list(range(3, POLICY.max_checks + 1))


async def test_a_silent_one_that_nobody_stands_in_for_is_asked_a_little_later(
    world: World, store: Store, topic: Topic, brokers: tuple[Broker, Broker]
) -> None:
    mute, answers = brokers
    await answers.close()
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check)
    later = int(TURNS_OF_OTHERS * mute.checker.interval * 1_000_000)
    for number in range(1, POLICY.max_checks + 1):
        await mute.checker.check_due()
        if number > 2:
            assert len(mute.asked) == number - 1
            world.clock.pass_time(later)
            await mute.checker.check_due()
        assert mute.asked == list(range(1, number + 1))
        world.clock.pass_time(POLICY.interval)
