"""Messages of push consumers stay theirs as long as they are there, and no longer.

The broker runs in this process: its times, which are minutes and hours, are made short. All of it happens at the same
time, for most of it is waiting.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from broker.embedded import EmbeddedBroker
from broker.rocketmq import clients, renewals
from broker.rocketmq.protocol import Code
from support.rocketmq_protocol import ClientType, RawClient, message, unique

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEASE, SILENCE, LONGEST_WORK = 2.4, 4.0, 9.0


class Place:
    """A topic with a group, one push consumer, and another consumer that would like its messages."""

    def __init__(self, endpoint: str) -> None:
        self.topic, self.group = unique("topic"), unique("group")
        self.push, self.other = RawClient(endpoint), RawClient(endpoint)

    async def get(self, *bodies: str, message_group: str = "") -> list[str]:
        """Has the push consumer get these messages; their receipt handles."""
        await self.other.send(*[message(self.topic, body, message_group=message_group) for body in bodies])
        received = await self.push.receive_some(self.group, self.topic, auto_renew=True)
        assert received.bodies == list(bodies)
        return received.handles

    async def ack(self, handle: str) -> int:
        return int((await self.push.ack(self.group, self.topic, handle)).status.code)

    async def held_for(self, seconds: float) -> None:
        """The other one gets nothing for so long."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            received = await self.other.receive(self.group, self.topic, wait=rest)
            assert received.bodies == []

    async def given_up(self, count: int = 1) -> list[str]:
        """What the other one gets, when it does."""
        found: list[str] = []
        while len(found) < count:
            found += (await self.other.receive_some(self.group, self.topic)).bodies
        return sorted(found)

    async def close(self) -> None:
        await self.push.close()
        await self.other.close()


async def heartbeats_keep_a_message(here: Place) -> None:
    (handle,) = await here.get("slow work")

    async def beat() -> None:
        while True:
            assert await here.push.heartbeat(ClientType.PUSH_CONSUMER, here.group) == Code.OK
            await asyncio.sleep(SILENCE / 8)

    beating = asyncio.create_task(beat())
    await here.held_for(SILENCE + LEASE)
    # The handle is the one that came with the message.
    assert await here.ack(handle) == Code.OK
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await here.held_for(LEASE)


async def a_stream_keeps_a_message_without_a_heartbeat(here: Place) -> None:
    stream = await here.push.as_consumer(here.group, here.topic)
    await here.get("slow work")
    await here.held_for(SILENCE + LEASE)
    await stream.hang_up()
    started = time.monotonic()
    assert await here.given_up() == ["slow work"]
    assert time.monotonic() - started >= SILENCE - LEASE, "it may come back"


async def a_client_that_is_gone_keeps_nothing(here: Place) -> None:
    await here.get("0", "1", "2")
    started = time.monotonic()
    assert await here.given_up(3) == ["0", "1", "2"]
    assert time.monotonic() - started >= SILENCE - LEASE


async def what_is_settled_is_kept_no_more_and_the_rest_is(here: Place) -> None:
    await here.push.as_consumer(here.group, here.topic)
    acked, nacked, dead, kept = await here.get("acked", "nacked", "dead", "kept")
    assert await here.ack(acked) == Code.OK
    assert (await here.push.change(here.group, here.topic, nacked, 0)).status.code == Code.OK
    assert await here.push.give_up(here.group, here.topic, dead) == Code.OK
    assert await here.given_up() == ["nacked"]
    await here.held_for(2 * LEASE)
    assert await here.ack(kept) == Code.OK


async def a_message_group_is_kept_as_a_whole(here: Place) -> None:
    await here.push.as_consumer(here.group, here.topic)
    (handle,) = await here.get("first", message_group="g")
    await here.other.send_one(here.topic, "second", message_group="g")
    await here.held_for(2 * LEASE)
    assert await here.ack(handle) == Code.OK
    assert await here.given_up() == ["second"]


async def who_leaves_gives_everything_back(here: Place) -> None:
    await here.push.as_consumer(here.group, here.topic)
    await here.get("0", "1")
    assert await here.push.terminate(here.group) == Code.OK
    assert await here.given_up(2) == ["0", "1"]


async def nobody_keeps_a_message_for_ever(here: Place) -> None:
    """A worker that hangs, in a client that is well."""
    await here.push.as_consumer(here.group, here.topic)
    (handle,) = await here.get("hangs")
    started = time.monotonic()
    assert await here.given_up() == ["hangs"]
    assert time.monotonic() - started >= LONGEST_WORK - LEASE
    assert await here.ack(handle) == Code.INVALID_RECEIPT_HANDLE


async def simple_consumers_messages_are_not_kept(here: Place) -> None:
    await here.push.as_consumer(here.group, here.topic, kind=ClientType.SIMPLE_CONSUMER)
    await here.other.send_one(here.topic, "hello")
    await here.push.receive_some(here.group, here.topic, invisible=LEASE)
    assert await here.given_up() == ["hello"]


SCENES: list[Callable[[Place], Awaitable[None]]] = [
    heartbeats_keep_a_message,
    a_stream_keeps_a_message_without_a_heartbeat,
    a_client_that_is_gone_keeps_nothing,
    what_is_settled_is_kept_no_more_and_the_rest_is,
    a_message_group_is_kept_as_a_whole,
    who_leaves_gives_everything_back,
    nobody_keeps_a_message_for_ever,
    simple_consumers_messages_are_not_kept,
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """How each of the scenes ended: None, or an error."""

    async def play(endpoint: str) -> list[Any]:
        places = [Place(endpoint) for _ in SCENES]
        ends = await asyncio.gather(
            *[scene(here) for scene, here in zip(SCENES, places, strict=True)], return_exceptions=True
        )
        for here in places:
            await here.close()
        return ends

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "SILENCE", SILENCE)
        patch.setattr(renewals, "LONGEST_WORK", LONGEST_WORK)
        with EmbeddedBroker(rocketmq=True, rocketmq_min_invisible=0.1, lease=LEASE, queue_count=1) as broker:
            ends = asyncio.run(play(broker.endpoint))
    return {scene.__name__: end for scene, end in zip(SCENES, ends, strict=True)}


@pytest.mark.parametrize("scene", [scene.__name__ for scene in SCENES])
def test_that(outcomes: dict[str, Any], scene: str) -> None:
    if outcomes[scene] is not None:
        raise outcomes[scene]
