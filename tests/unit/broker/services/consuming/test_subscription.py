"""A consumer that waits is woken for whatever came since it last looked, however the two fall together."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.group import ConsumerGroup, GroupSettings
from broker.domain.message import LogMessage
from broker.domain.topic import Topic
from broker.errors import NotFound, Overloaded, StorageUnavailable
from broker.ports.delivery import Claimed, Delivered
from broker.services.consuming import subscription as module
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.subscription import SubscribeRequest, Subscription
from broker.services.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.errors import BrokerError

HANGS = 20.0
HOUR = 3600 * 1_000_000
GROUP = ConsumerGroup(1, "billing", 0, GroupSettings(3))


def topic(topic_id: int) -> Topic:
    return Topic(topic_id, "orders", HOUR, 0, (10 * topic_id,))


OLD, ANEW = topic(1), topic(2)


def part(offset: int) -> Delivered:
    message = LogMessage("orders", 0, offset, b"\0" * 16, 0, b"x", None, [], {}, None, 0, 0)
    return Delivered(offset + 1, 1, 1, 0, None, [message])


class Rig:
    """A storage whose answers are written down before; what is called has its say when it is looked at."""

    def __init__(self, *answers: Callable[[], Claimed | BrokerError]) -> None:
        self.wakeups = Wakeups()
        self.topics = [OLD]
        self.on_look_at_leases: Callable[[], None] = lambda: None
        self._answers = list(answers)

    async def claim(self, work: Sequence[Any]) -> list[Claimed | BrokerError]:
        return [self._answers.pop(0)() if self._answers else Claimed([])]

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        self.on_look_at_leases()
        return True

    async def settle(self, work: Sequence[Any]) -> list[Any]:
        return []

    async def join(self, request: SubscribeRequest) -> tuple[ConsumerGroup, list[Topic]]:
        return GROUP, self.topics

    def subscription(self, lease_time: int = HOUR) -> Subscription:
        return Subscription(
            SubscribeRequest("billing", ["orders"], "c", lease_time),
            (GROUP, [OLD]),
            leases=self,
            receipts=self,
            join=self.join,
            wakeups=self.wakeups,
            config=DeliveryConfig(longest_wait=10 * HOUR),
        )


async def test_what_comes_behind_a_read_ahead_that_found_nothing_wakes() -> None:
    def comes_just_after() -> Claimed:
        asyncio.get_running_loop().call_soon(rig.wakeups.released, {(OLD.topic_id, 10): 3})
        return Claimed([])

    rig = Rig(
        lambda: Claimed([part(0)], more=True),
        lambda: Claimed([part(1)], more=True),
        comes_just_after,
        lambda: Claimed([part(2)]),
    )
    consumer = rig.subscription()
    consumer.grant(10)
    async with aclosing(consumer.batches()) as batches, asyncio.timeout(HANGS):
        for offset in (0, 1):
            assert (await anext(batches))[0].messages[0].offset == offset
        # The read-ahead ends here, and what comes then is told.
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await anext(batches))[0].messages[0].offset == 2


@pytest.mark.parametrize("how", ["batches", "wait_and_take"])
async def test_who_found_a_topic_made_anew_waits_for_that_one(how: str) -> None:
    """It joins the new one while it looks; what it waits for is no more the old one's."""

    def deleted() -> NotFound:
        rig.topics = [ANEW]
        return NotFound("gone", reason="TOPIC_NOT_FOUND", field="topics")

    def comes_just_after() -> Claimed:
        asyncio.get_running_loop().call_later(0.01, rig.wakeups.released, {(ANEW.topic_id, 20): 1})
        return Claimed([])

    rig = Rig(deleted, lambda: Claimed([]), comes_just_after, lambda: Claimed([part(0)]))
    consumer = rig.subscription()
    consumer.grant(10)
    async with asyncio.timeout(HANGS):
        if how == "wait_and_take":
            got = await consumer.wait_and_take(1, 10 * HOUR)
        else:
            async with aclosing(consumer.batches()) as batches:
                got = await anext(batches)
    assert got[0].messages[0].offset == 0


async def test_a_consumer_that_speaks_while_its_leases_are_looked_at_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time=0.0, monotonic=lambda: clock.time)
    monkeypatch.setattr(module, "time", clock)
    rig = Rig(lambda: Claimed([part(0)]), lambda: Claimed([part(1)]))
    consumer = rig.subscription(HOUR)
    consumer.grant(10)
    async with aclosing(consumer.batches()) as batches, asyncio.timeout(HANGS):
        await anext(batches)
        clock.time = 2 * 3600.0
        rig.on_look_at_leases = consumer.spoke
        rig.wakeups.released({(OLD.topic_id, 10): 2})
        assert (await anext(batches))[0].messages[0].offset == 1


@pytest.mark.parametrize("trouble", [StorageUnavailable("away"), Overloaded("too much waits", retry_after=0.5)])
async def test_a_stream_outlives_a_claim_that_waited_for_too_long(
    monkeypatch: pytest.MonkeyPatch, trouble: BrokerError
) -> None:
    """Which of the two a claim is told depends on what else waited for a database that stood still."""
    monkeypatch.setattr(module, "RETRY_PAUSE", 0.0)
    rig = Rig(lambda: trouble, lambda: Claimed([part(0)]))
    consumer = rig.subscription()
    consumer.grant(10)
    async with aclosing(consumer.batches()) as batches, asyncio.timeout(HANGS):
        assert (await anext(batches))[0].messages[0].offset == 0


@pytest.mark.parametrize(("credit", "factor", "gather"), [(8, 1e9, 0.05), (7, 1e9, HANGS), (8, 0.0, HANGS)])
async def test_what_comes_soon_after_a_claim_is_gathered(
    monkeypatch: pytest.MonkeyPatch, credit: int, factor: float, gather: float
) -> None:
    """Unless the claim was quick, or the consumer has few credits, and may wait for each message; or more is left."""
    claimed_at: list[float] = []

    def claim(offset: int, *, more: bool) -> Callable[[], Claimed]:
        def found() -> Claimed:
            claimed_at.append(asyncio.get_running_loop().time())
            return Claimed([part(offset)], more=more)

        return found

    rig = Rig(claim(0, more=True), claim(1, more=False), claim(2, more=False))
    consumer = rig.subscription()
    consumer.grant(credit + 2)
    monkeypatch.setattr(module, "GATHER_FACTOR", factor)
    monkeypatch.setattr(module, "LONGEST_GATHER", gather)
    async with aclosing(consumer.batches()) as batches, asyncio.timeout(HANGS):
        for offset in range(3):
            if offset == 2:
                rig.wakeups.released({(OLD.topic_id, 10): 3})
            assert (await anext(batches))[0].messages[0].offset == offset
    if gather < HANGS:
        # It counts from before the claim, which takes a moment.
        assert claimed_at[2] - claimed_at[1] >= gather / 2
