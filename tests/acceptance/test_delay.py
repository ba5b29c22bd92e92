"""Messages that wait for their time, through the protocol: punctual, recallable, and safe when a broker dies."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import COMMITTED, Client, Pair, half, message, new_id, unique
from halfmq.v1 import consumer_pb2, message_pb2, producer_pb2, query_pb2, transaction_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.databases import AnyKind
    from support.shared_brokers import Brokers

BURST = 10_000
INVALID, PRECONDITION, NOT_FOUND = (
    code.value[0]
    for code in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
    )
)


def delayed(topic: str, body: str, seconds: float, **rest: object) -> message_pb2.Message:
    wanted = message(topic, body, **rest)
    wanted.delay.FromMicroseconds(int(seconds * 1e6))
    return wanted


async def send(client: Client, messages: list[message_pb2.Message]) -> list[producer_pb2.SendResult]:
    return list((await client.call(client.producer.Send, producer_pb2.SendRequest(messages=messages))).results)


async def recall(client: Client, *ids: str) -> list[producer_pb2.RecallResult]:
    return list((await client.call(client.producer.Recall, producer_pb2.RecallRequest(message_ids=ids))).results)


async def log_of(client: Client, topic: str, queue: int = 0) -> list[message_pb2.LogMessage]:
    request = consumer_pb2.ReadQueueRequest(topic=topic, queue=queue, max_messages=100_000)
    pieces = await client.stream(client.consumer.ReadQueue, request)
    return [found for piece in pieces for found in piece.messages]


async def test_a_delayed_message_comes_when_it_is_due(pair: Pair) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    (result,) = await send(client, [delayed(topic, "later", 0.5)])
    assert (result.position.topic, result.position.HasField("scheduled_at")) == (topic, True)
    assert await client.consume_all(group, topic) == []
    (delivery,) = await other.pull(group, topic, wait=10)
    late = delivery.message.stored_at.ToMicroseconds() - result.position.scheduled_at.ToMicroseconds()
    assert 0 <= late < 2_000_000
    assert delivery.message.deliver_at == result.position.scheduled_at
    assert not any(name.startswith("halfmq.") for name in delivery.message.properties)


async def test_a_half_message_waits_for_both(pair: Pair) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    halves = [message(topic, "now"), delayed(topic, "later", 0.8)]
    (result,) = await client.prepare_items(unique("shop"), [half(halves, check_after=60)])
    request = transaction_pb2.CommitRequest(transaction_ids=[result.transaction_id])
    (committed,) = (await other.call(other.transactions.Commit, request)).results
    assert committed.state == COMMITTED
    assert [place.HasField("scheduled_at") for place in committed.released] == [False, True]
    assert await client.consume_all(group, topic) == ["now"]
    (delivery,) = await client.pull(group, topic, wait=10)
    assert (delivery.message.body, delivery.message.message_id) == (b"later", f"{result.transaction_id}.1")


@pytest.mark.parametrize("name", ["delay", "deliver_at"])
async def test_too_far_ahead_is_refused(client: Client, name: str) -> None:
    topic = await client.make_topic()
    wanted = message(topic)
    if name == "delay":
        wanted.delay.FromSeconds(24 * 3600 + 1)
    else:
        wanted.deliver_at.FromSeconds(int(time.time()) + 25 * 3600)
    (sent,) = await send(client, [wanted])
    assert (sent.error.code, sent.error.field) == (INVALID, f"messages[0].{name}")
    assert "24 h" in sent.error.message
    (prepared,) = await client.prepare_items(unique("shop"), [half([message(topic), wanted])])
    assert (prepared.error.code, prepared.error.field) == (INVALID, f"messages[1].{name}")


async def test_recall(pair: Pair) -> None:
    client, other = pair
    topic, group = await client.make_topic(), await client.make_group()
    waiting, released = await send(client, [delayed(topic, "later", 3600), message(topic, "now")])
    own_id = waiting.position.message_id
    first, again = (await recall(other, own_id), await recall(client, own_id))
    assert first == again
    assert first[0].HasField("recalled_at")
    unknown, late, nonsense = await recall(client, new_id(), released.position.message_id, "nonsense")
    assert [(r.error.code, r.error.reason) for r in (unknown, late)] == [
        (NOT_FOUND, "MESSAGE_NOT_FOUND"),
        (PRECONDITION, "ALREADY_RELEASED"),
    ]
    assert nonsense.error.code == INVALID
    (open_one,) = await client.prepare_items(unique("shop"), [half([delayed(topic, "x", 60)], check_after=60)])
    (refused,) = await recall(other, open_one.transaction_id)
    assert (refused.error.code, refused.error.reason) == (PRECONDITION, "NOT_COMMITTED")
    found = await other.call(other.query.GetMessage, query_pb2.GetMessageRequest(message_id=own_id))
    assert found.recalled_at == first[0].recalled_at
    assert await client.consume_all(group, topic) == ["now"]


async def test_a_broker_that_was_killed_delays_nobody(
    server_kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    """What a dead broker took in is moved by another one, which looks for it."""
    url = brokers.database(server_kind)
    first, second = new_broker(url), new_broker(url)
    client, other = connect(first), connect(second)
    topic, group = await other.make_topic(), await other.make_group()
    (result,) = await send(client, [delayed(topic, "orphan", 0.6)])
    first.kill()
    (delivery,) = await other.pull(group, topic, wait=20)
    late = delivery.message.stored_at.ToMicroseconds() - result.position.scheduled_at.ToMicroseconds()
    assert delivery.message.body == b"orphan"
    assert 0 <= late < 5_000_000


async def test_ten_thousand_within_a_second(pair: Pair, kind: AnyKind) -> None:
    """Taken in by two brokers, and consumed from both. How late they are is printed, and asserted loosely."""
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    begin = time.time() + 15
    due: dict[str, int] = {}
    for start in range(0, BURST, 1000):
        batch = []
        for number in range(start, start + 1000):
            wanted = message(topic, f"{number}")
            wanted.deliver_at.FromMicroseconds(int((begin + number / BURST) * 1e6))
            batch.append(wanted)
        for sent in await send(pair[start // 1000 % 2], batch):
            due[sent.position.message_id] = sent.position.scheduled_at.ToMicroseconds()
    assert time.time() < begin, "the machine is too slow to take them in in time"
    assert len(due) == BURST
    arrived: dict[str, float] = {}

    async def consume(client: Client) -> None:
        while len(arrived) < BURST:
            deliveries = await client.pull(group, topic, wait=1)
            now = time.time() * 1e6
            for delivery in deliveries:
                assert delivery.message.message_id not in arrived
                arrived[delivery.message.message_id] = now

    async with asyncio.timeout(120):
        await asyncio.gather(*[consume(client) for client in pair])
    found = await log_of(pair[1], topic)
    assert [(m.offset, m.body) for m in found] == [(n, str(n).encode()) for n in range(BURST)]
    released = sorted(m.stored_at.ToMicroseconds() - due[m.message_id] for m in found)
    assert released[0] >= 0
    came = sorted(at - due[message_id] for message_id, at in arrived.items())
    for what, late in (("released", released), ("at the consumer", came)):
        middle, most, worst = (late[BURST * part // 1000] / 1000 for part in (500, 990, 999))
        sys.stdout.write(f"{kind}, {what}: late by {middle:.0f} ms (median), {most:.0f} ms (99%), {worst:.0f} ms\n")
        assert most < 30_000, "a busy machine is slower, but not that much"
