"""Reading a queue that has nothing yet: whoever waits gets the message that comes, or an answer without one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import Client, Refusal, message, unique
from halfmq.v1 import consumer_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

# A missed message would show: calls are given up earlier.
LONGEST = 60.0


async def read(
    client: Client, topic: str, offset: int, wait: float, queue: int = 0
) -> list[consumer_pb2.ReadQueueResponse]:
    request = consumer_pb2.ReadQueueRequest(topic=topic, queue=queue, offset=offset)
    request.wait.FromMicroseconds(int(wait * 1e6))
    return await client.stream(client.consumer.ReadQueue, request)


async def begin(client: Client, topic: str, offset: int) -> asyncio.Task[list[consumer_pb2.ReadQueueResponse]]:
    """Starts to wait for a message."""
    waiting = asyncio.create_task(read(client, topic, offset, LONGEST))
    # It looked at the queue before anything that comes later on this connection is answered.
    await client.call(client.consumer.QueueOffsets, consumer_pb2.QueueOffsetsRequest(topic=topic))
    assert not waiting.done()
    return waiting


def told(pieces: list[consumer_pb2.ReadQueueResponse]) -> list[tuple[list[str], int, int]]:
    return [([m.body.decode() for m in piece.messages], piece.next_offset, piece.max_offset) for piece in pieces]


async def measured(client: Client, topic: str, **part: int) -> tuple[int, int]:
    request = consumer_pb2.MeasureQueueRequest(topic=topic, **part)
    answer = await client.call(client.consumer.MeasureQueue, request)
    return answer.end_offset, answer.bytes


async def test_a_part_of_a_queue_is_measured(client: Client) -> None:
    topic = await client.make_topic()
    assert await measured(client, topic) == (0, 0)
    sizes = [1 + number % 7 * 10 for number in range(1500)]
    for start in range(0, len(sizes), 500):
        wanted = [message(topic, "x" * size) for size in sizes[start : start + 500]]
        await client.call(client.producer.Send, producer_pb2.SendRequest(messages=wanted))
    assert await measured(client, topic) == (1500, sum(sizes))
    assert await measured(client, topic, offset=100, end_offset=700) == (700, sum(sizes[100:700]))
    assert await measured(client, topic, offset=1400, end_offset=9999) == (1500, sum(sizes[1400:]))
    assert await measured(client, topic, offset=1600) == (1600, 0)
    assert await measured(client, topic, offset=700, end_offset=100) == (700, 0)
    for first in (0, 3, 640, 1499):
        for most in (1, 60, 1000, 12_345, sum(sizes[first:]), sum(sizes)):
            fit = 0
            while first + fit < len(sizes) and sum(sizes[first : first + fit + 1]) <= most:
                fit += 1
            fit = max(1, fit)
            expected = (first + fit, sum(sizes[first : first + fit]))
            assert await measured(client, topic, offset=first, max_bytes=most) == expected


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"queue": 4}, grpc.StatusCode.INVALID_ARGUMENT, "queue: The topic"),
        ({"offset": -1}, grpc.StatusCode.INVALID_ARGUMENT, "offset: An offset cannot be negative"),
        ({"end_offset": -1}, grpc.StatusCode.INVALID_ARGUMENT, "end_offset: "),
        ({"max_bytes": -1}, grpc.StatusCode.INVALID_ARGUMENT, "max_bytes: "),
        ({"topic": "not-there"}, grpc.StatusCode.NOT_FOUND, "not-there"),
        ({"topic_id": "1-1"}, grpc.StatusCode.FAILED_PRECONDITION, "topic_id"),
    ],
)
async def test_a_part_that_cannot_be_measured(
    client: Client, changes: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    topic = await client.make_topic()
    request = consumer_pb2.MeasureQueueRequest(**{"topic": topic, **changes})
    with pytest.raises(Refusal) as refused:
        await client.call(client.consumer.MeasureQueue, request)
    assert refused.value.code is code
    assert words in refused.value.text


async def test_a_message_that_arrives_ends_the_wait(client: Client) -> None:
    topic = await client.make_topic()
    waiting = await begin(client, topic, 0)
    await client.send(topic, "sent")
    assert told(await waiting) == [(["sent"], 1, 1)]
    (one,) = await client.prepare(unique("shop"), topic, ["committed"])
    waiting = await begin(client, topic, 1)
    await client.commit([one])
    assert told(await waiting) == [(["committed"], 2, 2)]


async def test_a_message_on_another_broker_ends_the_wait(
    server_kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess], connect: Callable[..., Client]
) -> None:
    url = brokers.database(server_kind)
    here, there = connect(new_broker(url)), connect(new_broker(url))
    topic = await here.make_topic()
    waiting = await begin(here, topic, 0)
    await there.send(topic, "sent")
    assert told(await waiting) == [(["sent"], 1, 1)]


async def test_when_nothing_arrives_the_answer_is_empty_and_comes_at_its_time(client: Client) -> None:
    topic = await client.make_topic()
    await client.send(topic, "before")
    begun = asyncio.get_running_loop().time()
    assert told(await read(client, topic, 1, 0.3)) == [([], 1, 1)]
    assert asyncio.get_running_loop().time() - begun >= 0.3
    assert told(await read(client, topic, 1, 0)) == [([], 1, 1)]


async def test_what_arrives_in_another_queue_is_not_waited_for(client: Client) -> None:
    topic = await client.make_topic(queues=2)
    placed = await client.send(topic, "found out", message_group="g")
    busy = placed.position.queue
    begun = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(read(client, topic, 0, 0.5, queue=1 - busy))
    request = producer_pb2.SendRequest(messages=[message(topic, "elsewhere", message_group="g")])
    results = (await client.call(client.producer.Send, request)).results
    assert [result.position.queue for result in results] == [busy]
    assert told(await waiting) == [([], 0, 0)]
    assert asyncio.get_running_loop().time() - begun >= 0.5


async def test_only_the_first_message_is_waited_for(client: Client) -> None:
    topic = await client.make_topic()
    await client.send(topic, "one")
    # Asked for 32, with one there: it comes now.
    assert told(await read(client, topic, 0, LONGEST)) == [(["one"], 1, 1)]
