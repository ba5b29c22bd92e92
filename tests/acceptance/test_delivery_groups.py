"""What operators do to a consumer group on one broker, its consumers on another one notice within a moment."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Client, Refusal, message, unique
from acceptance.streams import (
    EARLIEST,
    LATEST,
    Listener,
    eventually,
    handles,
    make_group,
    progress,
    seconds,
)
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

Pair = tuple[Client, Client]

# Brokers look at groups four times a second; the rest is for machines that do much else.
MOMENT = 3.0
ROUNDS = 5


async def send(client: Client, topic: str, bodies: Sequence[str]) -> None:
    request = producer_pb2.SendRequest(messages=[message(topic, body) for body in bodies])
    results = (await client.call(client.producer.Send, request)).results
    assert not any(result.HasField("error") for result in results)


def at(time_: Timestamp, later: int = 0) -> message_pb2.Position:
    """A time, and so many microseconds later."""
    position = message_pb2.Position()
    position.time.FromMicroseconds(time_.ToMicroseconds() + later)
    return position


async def seek(client: Client, group: str, topic: str, to: message_pb2.Position, queue: int | None = None) -> Any:
    request = admin_pb2.SeekGroupRequest(group=group, topic=topic, to=to, queue=queue)
    return await client.call(client.admin.SeekGroup, request)


async def both(*streams: Listener, count: int) -> list[str]:
    """Waits until so many came to these consumers together; the bodies, sorted as numbers."""

    async def came() -> list[str]:
        return [body for stream in streams for body in stream.bodies]

    return sorted(await eventually(came, lambda found: len(found) >= count), key=int)


def forget(*streams: Listener) -> None:
    for stream in streams:
        stream.arrivals.clear()


def told(what: str, taken: Sequence[float]) -> None:
    print(f"\n{what}: median {statistics.median(taken) * 1e3:.0f} ms, longest {max(taken) * 1e3:.0f} ms")
    assert max(taken) < MOMENT


@pytest.mark.parametrize("said_by", ["the group", "the consumer"])
@pytest.mark.parametrize("where", ["earliest", "latest", "time"])
async def test_where_a_group_begins(pair: Pair, said_by: str, where: str) -> None:
    topic = await pair[0].make_topic()
    for number in range(4):
        await pair[number % 2].send(topic, str(number))
    third = (await pair[0].log(topic))[2]
    start = {"earliest": EARLIEST, "latest": LATEST, "time": at(third.stored_at)}[where]
    settings = {"start": start} if said_by == "the group" else {}
    group = await make_group(pair[0], unique("readers"), **settings)
    rest = {"start": start} if said_by == "the consumer" else {}
    async with (
        Listener(pair[0], group, topic, acking=True, **rest) as one,
        Listener(pair[1], group, topic, acking=True, **rest) as other,
    ):
        await send(pair[1], topic, "45")
        expected = {"earliest": "012345", "latest": "45", "time": "2345"}[where]
        assert await both(one, other, count=len(expected)) == list(expected)
    # It has a place now: nothing moves it but a seek.
    async with Listener(pair[1], group, topic, start=EARLIEST) as again:
        await send(pair[0], topic, "6")
        assert [each.message.body for each in await again.next()] == [b"6"]


async def test_a_seek_is_noticed_by_consumers_at_work(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    await send(pair[0], topic, "0123456789")
    (sixth,) = [each for each in await pair[0].log(topic) if each.offset == 6]
    taken: dict[str, list[float]] = {"same broker": [], "other broker": []}
    places = [
        (EARLIEST, None, "0123456789"),
        (at(sixth.stored_at), None, ""),
        (message_pb2.Position(offset=4), 0, "456789"),
        (message_pb2.Position(offset=99), 0, ""),
        (LATEST, None, ""),
    ]
    for reader, client in enumerate(pair):
        async with Listener(client, group, topic, acking=True) as stream, Listener(pair[1 - reader], group, topic, credits=0):
            for number in range(2 * len(places)):
                to, queue, expected = places[number // 2]
                # Those sent together became visible together.
                expected = "0123456789" if to.HasField("time") else expected
                began = time.monotonic()
                answer = await seek(pair[number % 2], group, topic, to, queue)
                assert [each.next_offset for each in answer.progress] == [10 - len(expected)]
                await stream.until(lambda wanted=len(expected): len(stream.arrivals) == wanted or not wanted)
                if expected:
                    taken["same broker" if number % 2 == reader else "other broker"].append(
                        stream.arrivals[0].at - began
                    )
                assert stream.bodies == list(expected) or not expected
                await eventually(lambda: progress(client, group), lambda found: found[0].lag == 0)
                stream.arrivals.clear()
            await send(client, topic, "x")
            assert [each.message.body for each in await stream.next()] == [b"x"]
            await seek(client, group, topic, LATEST)
            topic = await pair[0].make_topic()
            await send(pair[0], topic, "0123456789")
            (sixth,) = [each for each in await pair[0].log(topic) if each.offset == 6]
            places[1] = (at(sixth.stored_at), None, "")
    for where, found in taken.items():
        told(f"a seek, noticed on the {where}", found)
