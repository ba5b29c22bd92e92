"""A consumer's stream brings as many messages as it granted credits, and no stream waits for another."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from acceptance.client import PATIENCE, Client, Pair, message
from halfmq.v1 import admin_pb2, consumer_pb2, consumer_pb2_grpc, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess

MIB = 1024 * 1024


class Stream:
    """A consumer's stream, read answer by answer."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._requests = 0

    @classmethod
    async def open(cls, client: Client, group: str, topic: str) -> Stream:
        stream = cls(client.consumer.Consume(timeout=PATIENCE))
        await stream.say(subscribe=consumer_pb2.Subscribe(consumer_group=group, topics=[topic]))
        assert (await stream.read()).HasField("subscribed")
        return stream

    async def say(self, **event: Any) -> None:
        await self._call.write(consumer_pb2.ConsumeRequest(request_id=self._requests, **event))

    async def grant(self, messages: int, body_bytes: int = 0) -> None:
        await self.say(credits=consumer_pb2.GrantCredits(messages=messages, bytes=body_bytes))

    async def read(self) -> consumer_pb2.ConsumeResponse:
        response = await self._call.read()
        assert isinstance(response, consumer_pb2.ConsumeResponse), response
        return response

    async def take(self, count: int) -> list[consumer_pb2.Delivery]:
        """As many deliveries; more than these must not come with them."""
        found: list[consumer_pb2.Delivery] = []
        while len(found) < count:
            response = await self.read()
            assert response.HasField("deliveries"), response
            found += response.deliveries.deliveries
        assert len(found) == count
        return found

    async def ack(self, *deliveries: consumer_pb2.Delivery) -> None:
        """Acknowledges; the outcome must be the very next that the stream brings."""
        self._requests += 1
        await self.say(ack=consumer_pb2.AckRequest(receipt_handles=[each.receipt_handle for each in deliveries]))
        response = await self.read()
        assert response.HasField("outcome"), response
        assert response.outcome.request_id == self._requests
        assert not any(result.HasField("error") for result in response.outcome.results)

    async def code(self) -> grpc.StatusCode:
        """How the broker ended it."""
        ending: grpc.StatusCode = await self._call.code()
        return ending

    async def text(self) -> str:
        return str(await self._call.details())

    async def leave(self) -> None:
        self._call.cancel()
        assert await self.code() is grpc.StatusCode.CANCELLED


async def fill(client: Client, topic: str, *bodies: str | bytes) -> None:
    request = producer_pb2.SendRequest(messages=[message(topic, body) for body in bodies])
    results = (await client.call(client.producer.Send, request)).results
    assert not any(result.HasField("error") for result in results)


async def progress(client: Client, group: str) -> admin_pb2.GroupProgress:
    """How far a group has come in its one queue."""
    response = await client.call(client.admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=group))
    (found,) = response.progress
    assert isinstance(found, admin_pb2.GroupProgress)
    return found


async def test_three_credits_bring_three_messages(pair: Pair) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    await fill(client, topic, *"0123456789")
    stream = await Stream.open(client, group, topic)
    handed_out = 0
    for expected in ("012", "345", "678", "9"):
        await stream.grant(3)
        found = await stream.take(len(expected))
        assert "".join(each.message.body.decode() for each in found) == expected
        handed_out += len(found)
        # Acknowledging gives no credit back: the answer comes, and no message with it.
        for each in found:
            await stream.ack(each)
        after = await progress(client, group)
        assert (after.next_offset, after.committed_offset, after.in_flight) == (handed_out, handed_out, 0)
    # Two of the last three are left, for messages that come later.
    await fill(client, topic, *"abc")
    assert [each.message.body for each in await stream.take(2)] == [b"a", b"b"]
    # Nobody holds the one there was no credit for: another consumer of the group gets it, from another broker.
    assert [each.message.body for each in await other.pull(group, topic, wait=20)] == [b"c"]
    await stream.leave()


async def test_credits_add_up(pair: Pair) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    stream = await Stream.open(client, group, topic)
    for messages in (1, 0, 2):
        await stream.grant(messages)
    await fill(client, topic, *"0123456789")
    found = await stream.take(3)
    await stream.ack(*found)
    assert (await progress(other, group)).next_offset == 3
    assert len(await other.pull(group, topic)) == 7
    await stream.leave()


async def test_the_limit_of_credits(client: Client) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    for messages in (99_999, 100_000):
        await fill(client, topic, "order")
        stream = await Stream.open(client, group, topic)
        await stream.grant(messages)
        await stream.ack(*await stream.take(1))
        await stream.leave()
    stream = await Stream.open(client, group, topic)
    await stream.grant(100_001)
    with pytest.raises(grpc.aio.AioRpcError, match="messages: 100001 messages at once; 100000 are allowed"):
        await stream.read()
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_bytes_of_bodies_are_credits_too(client: Client) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill(client, topic, *[bytes(1000)] * 10)
    stream = await Stream.open(client, group, topic)
    await stream.grant(100, 2500)
    # The last one exceeds them.
    found = await stream.take(3)
    await stream.grant(0, 499)
    await stream.ack(found.pop())
    assert (await progress(client, group)).next_offset == 3
    await stream.grant(0, 2)
    found += await stream.take(1)
    # One that is larger than all of them is sent, too.
    await fill(client, topic, bytes(10_000))
    await stream.grant(0, 1_000_000)
    found += await stream.take(7)
    await stream.ack(*found)
    await stream.leave()


@pytest.mark.parametrize("where", ["same connection", "another connection"])
async def test_a_stream_that_is_not_read_does_not_hold_up_another(
    client: Client, broker: BrokerProcess, connect: Callable[[BrokerProcess], Client], where: str
) -> None:
    topic, sleepers, readers = await client.make_topic(), await client.make_group(), await client.make_group()
    # Far more than the buffers between the broker and a client hold.
    count = 48
    for number in range(count):
        await fill(client, topic, b"%02d" % number + bytes(MIB))
    sleeping = await Stream.open(client, sleepers, topic)
    await sleeping.grant(count)
    asleep = [await sleeping.read()]
    reading = await Stream.open(client if where == "same connection" else connect(broker), readers, topic)
    await reading.grant(count)
    found = await reading.take(count)
    assert [int(each.message.body[:2]) for each in found] == list(range(count))
    # What is not read is not fetched either: the broker waits with a few messages, and the others stay where they are.
    assert (await progress(client, sleepers)).next_offset < count // 2
    assert (await progress(client, readers)).next_offset == count
    # And it goes on when it is read again.
    late = [each for response in asleep for each in response.deliveries.deliveries]
    late += await sleeping.take(count - len(late))
    assert [int(each.message.body[:2]) for each in late] == list(range(count))
    for stream in (sleeping, reading):
        await stream.leave()


@pytest.mark.parametrize("message_group", ["", "one each"])
@pytest.mark.parametrize("nacks", [False, True])
async def test_who_settles_by_other_calls_goes_on_getting_messages(pair: Pair, nacks: bool, message_group: str) -> None:
    """A stream that says nothing more is not taken for dead while its messages are settled, on whichever broker."""
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    call: Any = client.consumer.Consume()
    subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
    subscribe.lease_duration.FromMilliseconds(300)
    await call.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
    await call.write(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=1000)))
    await call.read()
    began = time.monotonic()
    seen = 0
    while time.monotonic() - began < 1.5:
        await client.send(topic, f"{seen}", message_group=message_group and f"{seen}")
        async with asyncio.timeout(PATIENCE):
            response = await call.read()
        (delivery,) = response.deliveries.deliveries
        assert (delivery.message.body, delivery.attempt) == (f"{seen}".encode(), 1)
        if nacks:
            nack = consumer_pb2.NackRequest(receipt_handles=[delivery.receipt_handle])
            nack.delay.FromSeconds(3600)
            await other.call(other.consumer.Nack, nack)
        else:
            await other.call(other.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=[delivery.receipt_handle]))
        seen += 1
    assert seen > 3
    call.cancel()


async def test_acks_that_are_written_before_the_next_is_read(client: Client, broker: BrokerProcess) -> None:
    """A loop that reads a response, writes its ack, and reads on: both directions are full at times."""
    topic, group = await client.make_topic(), await client.make_group()
    small = [message(topic, "small")] * 500
    for _ in range(12):
        await client.call(client.producer.Send, producer_pb2.SendRequest(messages=small))
    large = [message(topic, "x" * 100_000)] * 10
    await client.call(client.producer.Send, producer_pb2.SendRequest(messages=large))
    # The windows of the protocol's default, which a client that measures its line would enlarge.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    async with asyncio.timeout(PATIENCE), grpc.aio.insecure_channel(broker.endpoint, options=options) as channel:
        stub: Any = consumer_pb2_grpc.ConsumerServiceStub(channel)
        stream = Stream(stub.Consume())
        await stream.say(subscribe=consumer_pb2.Subscribe(consumer_group=group, topics=[topic]))
        assert (await stream.read()).HasField("subscribed")
        await stream.grant(10_000)
        taken: list[consumer_pb2.Delivery] = []
        while len(taken) < 5_000:
            taken += (await stream.read()).deliveries.deliveries
        unread = 6_010 - len(taken)
        acks = [taken[first : first + 100] for first in range(0, len(taken), 100)]
        for each in acks:
            await stream.say(ack=consumer_pb2.AckRequest(receipt_handles=[one.receipt_handle for one in each]))
        outcomes = 0
        while outcomes < len(acks) or unread:
            response = await stream.read()
            outcomes += response.HasField("outcome")
            unread -= len(response.deliveries.deliveries)
    assert (outcomes, unread) == (len(acks), 0)
