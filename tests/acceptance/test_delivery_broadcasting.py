"""A broadcasting group: every consumer gets every message and keeps its place under its name, on whichever broker."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from acceptance.client import Pair, Refusal, unique
from acceptance.streams import EARLIEST, Listener, eventually, make_group, progress
from halfmq.v1 import admin_pb2


@pytest.fixture
async def everyone(pair: Pair) -> str:
    """A broadcasting group that begins with the first message kept, and tries twice."""
    mode = admin_pb2.GROUP_MODE_BROADCASTING
    return await make_group(pair[0], unique("all"), mode=mode, start=EARLIEST, max_attempts=2, delays=[0])


async def send(pair: Pair, topic: str, *bodies: str) -> None:
    for number, body in enumerate(bodies):
        await pair[number % 2].send(topic, body)


async def test_everyone_gets_everything_and_goes_on_under_its_name(pair: Pair, everyone: str) -> None:
    topic = await pair[0].make_topic()
    await send(pair, topic, "0", "1")
    async with (
        Listener(pair[0], everyone, topic, client_id="ann", acking=True) as ann,
        Listener(pair[1], everyone, topic, client_id="bob", acking=True) as bob,
    ):
        async with Listener(pair[1], everyone, topic, client_id="cid", acking=True) as cid:
            await send(pair, topic, "2", "3")
            for stream in (ann, bob, cid):
                await stream.until(lambda stream=stream: len(stream.arrivals) == 4)  # type: ignore[misc]
                assert stream.bodies == list("0123")
            await eventually(lambda: progress(pair[0], everyone), lambda found: not any(each.lag for each in found))
        await send(pair, topic, "4", "5")
        await asyncio.gather(*[stream.until(lambda s=stream: len(s.arrivals) == 6) for stream in (ann, bob)])  # type: ignore[misc]
        await eventually(
            lambda: progress(pair[1], everyone),
            lambda found: {each.client_id: each.lag for each in found} == {"ann": 0, "bob": 0, "cid": 2},
        )
        # It comes back on the other broker.
        async with Listener(pair[0], everyone, topic, client_id="cid", acking=True) as cid:
            await send(pair, topic, "6")
            await cid.until(lambda: len(cid.arrivals) == 3)
            assert cid.bodies == list("456")
            async with Listener(pair[1], everyone, topic, client_id="dan", acking=True) as dan:
                await dan.until(lambda: len(dan.arrivals) == 7)
                await eventually(
                    lambda: progress(pair[0], everyone), lambda found: [each.lag for each in found] == [0] * 4
                )
        assert ann.bodies == bob.bodies == list("0123456")


async def test_failures_and_dead_letters_are_the_consumers_own(pair: Pair, everyone: str) -> None:
    topic = await pair[0].make_topic()
    async with (
        Listener(pair[0], everyone, topic, client_id="ann") as ann,
        Listener(pair[1], everyone, topic, client_id="bob") as bob,
    ):
        await send(pair, topic, "0")
        for attempt in (1, 2):
            (delivery,) = await ann.next()
            assert delivery.attempt == attempt
            (result,) = await ann.nack(delivery, reason="no", delay=None)
        assert result.HasField("dead_letter")
        (only,) = await bob.next()
        assert only.attempt == 1
        await bob.ack(only)
        redrive = admin_pb2.RedriveDeadLettersRequest(group=everyone)
        *_, last = await pair[1].stream(pair[1].admin.RedriveDeadLetters, redrive)
        assert (last.redriven, last.done) == (1, True)
        (again,) = await ann.next()
        assert (again.message.body, again.attempt, again.last_error) == (b"0", 1, "no")
        await ann.ack(again)
        await send(pair, topic, "1")
        assert [each.message.body for each in await bob.next()] == [b"1"]


async def test_pause_seek_and_the_end_hold_for_all(pair: Pair, everyone: str) -> None:
    topic = await pair[0].make_topic()
    await send(pair, topic, "0", "1")
    streams = [
        Listener(pair[0], everyone, topic, client_id="ann", acking=True),
        Listener(pair[1], everyone, topic, client_id="bob", acking=True),
        Listener(pair[1], everyone, topic, client_id="cid", acking=True),
    ]
    async with streams[0], streams[1], streams[2]:
        await asyncio.gather(*[stream.until(lambda s=stream: len(s.arrivals) == 2) for stream in streams])  # type: ignore[misc]
        await pair[1].call(pair[1].admin.PauseGroup, admin_pb2.PauseGroupRequest(group=everyone))
        await send(pair, topic, "2")
        request = admin_pb2.SeekGroupRequest(group=everyone, topic=topic, queue=0)
        request.to.offset = 1
        answer = await pair[0].call(pair[0].admin.SeekGroup, request)
        assert sorted((each.client_id, each.lag) for each in answer.progress) == [("ann", 2), ("bob", 2), ("cid", 2)]
        await pair[0].call(pair[0].admin.PauseGroup, admin_pb2.PauseGroupRequest(group=everyone, resume=True))
        await asyncio.gather(*[stream.until(lambda s=stream: len(s.arrivals) == 4) for stream in streams])  # type: ignore[misc]
        assert [stream.bodies for stream in streams] == [list("0112")] * 3
        await pair[0].call(pair[0].admin.DeleteGroup, admin_pb2.DeleteGroupRequest(group=everyone))
        for ending in await asyncio.gather(*[stream.ended() for stream in streams]):
            assert (ending.code, ending.reason) == (grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND")


async def test_a_consumer_without_a_name_is_refused(pair: Pair, everyone: str) -> None:
    topic = await pair[0].make_topic()
    for client in pair:
        with pytest.raises(Refusal, match=r"client_id.*every consumer keeps its place under its") as refused:
            await client.pull(everyone, topic)
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
