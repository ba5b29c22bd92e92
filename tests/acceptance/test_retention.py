"""A broker forgets by itself: heads of queues after their topic's retention, op records after the broker's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import PARKED, PATIENCE, PREPARED, Client, Refusal, unique
from acceptance.streams import eventually
from halfmq.v1 import admin_pb2, consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers

ONE_MILLISECOND = 1 / 3600 / 1000


async def queue(client: Client, topic: str) -> tuple[int, int]:
    """Where the topic's one queue begins and ends."""
    response = await client.call(client.admin.DescribeTopic, admin_pb2.DescribeTopicRequest(topic=topic))
    (found,) = response.queues
    return found.min_offset, found.max_offset


async def test_what_is_past_its_time_goes_and_the_rest_stays(
    kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    url = brokers.database(kind)
    # A broker that starts looks at once, if it has the turn: the same name has.
    first = new_broker(url, broker_id="sweeper", first_check=0.05, check_interval=0.05, max_checks=1)
    client = connect(first)
    short, long, group = unique("short"), await client.make_topic(), unique("shop")
    wanted = admin_pb2.Topic(name=short, queue_count=1)
    wanted.retention.FromMicroseconds(1)
    await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    readers = await client.make_group()
    committed, rolled_back = await client.prepare(group, short, ["committed", "rolled back"], check_after=3600)
    (parked,) = await client.prepare(group, short, ["parked"])
    checks = await client.answering(group)
    await client.commit([committed])
    await client.roll_back([rolled_back])
    for topic in (short, long):
        for body in ("one", "two"):
            await client.send(topic, body)
    (held, *_) = await client.pull(readers, short)
    await asyncio.to_thread(first.await_log, parked, "is parked")
    await checks.leave()
    (prepared,) = await client.prepare(group, short, ["prepared"], check_after=3600)
    assert await queue(client, short) == (0, 3)
    assert {(await client.transaction(one)).state for one in (parked, prepared)} == {PARKED, PREPARED}
    await client.close()
    await asyncio.to_thread(first.stop)

    client = connect(new_broker(url, broker_id="sweeper", retention_hours=ONE_MILLISECOND, first_check=3600))
    await eventually(lambda: queue(client, short), lambda found: found == (3, 3))
    async with asyncio.timeout(PATIENCE):
        for one in (committed, rolled_back):
            with pytest.raises(Refusal) as gone:
                while True:
                    await client.transaction(one)
            assert gone.value.code is grpc.StatusCode.NOT_FOUND
    assert await client.log(short) == []
    # The other topic was made with the three days that were the default then.
    assert (await queue(client, long), await client.bodies(long)) == ((0, 2), ["one", "two"])
    assert {(await client.transaction(one)).state for one in (parked, prepared)} == {PARKED, PREPARED}
    # Offsets go on, the group goes on, and a verdict that comes late finds its messages.
    await client.commit([prepared])
    assert await client.bodies(short) == ["prepared"]
    assert await client.consume_all(readers, short) == ["prepared"]
    request = consumer_pb2.ReadQueueRequest(topic=short, offset=held.message.offset)
    (piece,) = await client.stream(client.consumer.ReadQueue, request)
    assert (piece.min_offset, [m.offset for m in piece.messages]) == (3, [3])


async def test_of_a_topic_that_is_too_large_the_oldest_go(
    kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    """One broker forgets, what another one serves ends with it."""
    url = brokers.database(kind)
    sweeper = new_broker(url, broker_id="sweeper")
    client = connect(sweeper)
    topic, other, shop = unique("bounded"), await client.make_topic(), unique("shop")
    wanted = admin_pb2.Topic(name=topic, queue_count=1, retention_bytes=3_500)
    await client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=wanted))
    readers, late = await client.make_group(), await client.make_group()
    for number in range(10):
        body = f"{number}".ljust(1000)
        await client.send(other, body)
        if number % 2:
            await client.send(topic, body)
        else:
            await client.commit(await client.prepare(shop, topic, [body], check_after=600))
    held = await client.pull(readers, topic, 2)
    # What waits for a verdict is no part of the topic yet.
    (prepared,) = await client.prepare(shop, topic, ["prepared".ljust(1000)], check_after=600)
    assert await queue(client, topic) == (0, 10)
    server = kind != "sqlite"
    elsewhere = connect(new_broker(url, broker_id="reader")) if server else None
    await client.close()
    await asyncio.to_thread(sweeper.stop)

    client = connect(new_broker(url, broker_id="sweeper"))
    reader = elsewhere or client
    await eventually(lambda: queue(client, topic), lambda found: found == (7, 10))
    assert await queue(reader, topic) == (7, 10)
    assert [body.strip() for body in await reader.bodies(topic)] == ["7", "8", "9"]
    assert await queue(client, other) == (0, 10)
    # Groups go on with what is left, whatever they held; what is committed later has its place behind it.
    handles = [delivery.receipt_handle for delivery in held]
    results = (await reader.call(reader.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=handles))).results
    assert len(results) == len(held)
    await client.commit([prepared])
    for group in (readers, late):
        assert [body.strip() for body in await reader.consume_all(group, topic)] == ["7", "8", "9", "prepared"]
    assert await queue(reader, topic) == (7, 11)
