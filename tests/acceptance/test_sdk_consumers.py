"""Consumers of both forms that take messages themselves, against real brokers: nacks, batches, closing, sharing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import LONG_LEASE, Form, both_forms, consumer, fill, lag, take, texts
from consumer_sdk import (
    AsyncConsumer,
    BatchReceiptsRefused,
    ClientClosed,
    Consumer,
    LogPosition,
    StaleReceipt,
    SubscriptionRefused,
)
from halfmq.v1 import admin_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk import AsyncReceivedMessage
    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.shared_brokers import Brokers


async def test_iteration_in_both_forms(client: Client, broker: BrokerProcess) -> None:
    topic, groups = await client.make_topic(), [await client.make_group(), await client.make_group()]
    await fill(broker.endpoint, topic, ["one", "two", "three"])

    def iterate() -> list[str]:
        bodies = []
        with Consumer(broker.endpoint, groups[0], topic) as reader:
            for message in reader:
                bodies.append(message.text)
                message.ack()
                if len(bodies) == 3:
                    reader.stop()
        return bodies

    assert await asyncio.to_thread(iterate) == ["one", "two", "three"]
    bodies = []
    async with AsyncConsumer(broker.endpoint, groups[1], [topic]) as reader:
        async for message in reader:
            bodies.append(message.text)
            await message.ack()
            if len(bodies) == 3:
                reader.stop()
    assert bodies == ["one", "two", "three"]
    assert [await lag(client, topic, group) for group in groups] == [0, 0]


async def test_messages_settle_themselves_in_both_forms(client: Client, broker: BrokerProcess) -> None:
    topic, groups = await client.make_topic(), [await client.make_group(), await client.make_group()]
    await fill(broker.endpoint, topic, ["order"])

    def settle() -> None:
        with Consumer(broker.endpoint, groups[0], topic) as reader:
            assert next(reader).nack(0, "again") is None
            again = next(reader)
            assert (again.attempt, again.last_error) == (2, "again")
            again.ack(wait=False)

    await asyncio.to_thread(settle)
    async with AsyncConsumer(broker.endpoint, groups[1], topic) as reader:
        assert await (await anext(reader)).nack(0, "again") is None
        again = await anext(reader)
        assert (again.attempt, again.last_error) == (2, "again")
        await again.ack(wait=False)
    assert [await lag(client, topic, group) for group in groups] == [0, 0]


@both_forms
async def test_a_message_comes_as_it_was_sent(form: Form, client: Client, broker: BrokerProcess) -> None:
    orders, invoices, group = await client.make_topic(), await client.make_topic("invoices"), await client.make_group()
    async with consumer(form, broker.endpoint, group, [orders, invoices]) as reader:
        await reader.wait_until_subscribed(PATIENCE)
        assert await reader.receive(10, timeout=0) == []
        sent = await client.send(orders, "apples", tag="fruit", keys=["k"], properties={"a": "b"}, message_group="g")
        await client.send(invoices, "invoice")
        received = {message.topic: message for message in await take(reader, 2)}
        assert received[invoices].text == "invoice"
        found = received[orders]
        assert (found.text, found.tag, found.keys, found.message_group) == ("apples", "fruit", ("k",), "g")
        assert (found.properties["a"], found.attempt, found.last_error) == ("b", 1, None)
        assert (found.queue, found.offset, found.message_id) == (0, 0, sent.position.message_id)
        await reader.ack(received.values())
        assert [await lag(client, topic, group) for topic in (orders, invoices)] == [0, 0]


@both_forms
async def test_a_group_that_does_not_exist_is_refused(form: Form, client: Client, broker: BrokerProcess) -> None:
    async with consumer(form, broker.endpoint, unique("nobody"), await client.make_topic()) as reader:
        for call in (reader.wait_until_subscribed(PATIENCE), reader.receive(timeout=PATIENCE)):
            with pytest.raises(SubscriptionRefused) as refused:
                await call
            assert refused.value.reason == "GROUP_NOT_FOUND"


@both_forms
async def test_a_nacked_message_comes_again_after_its_delay(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill(broker.endpoint, topic, ["order"])
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        (first,) = await take(reader, 1)
        said = time.monotonic()
        assert await reader.nack(first, delay=1.0, reason="the shop is closed") == [None]
        (second,) = await take(reader, 1)
        # The broker counts by another clock.
        assert time.monotonic() - said > 0.95
        assert (second.message_id, second.attempt) == (first.message_id, 2)
        assert second.last_error == "the shop is closed"
        # At once; no reason: the one before stands.
        await reader.nack(second, delay=0)
        (third,) = await take(reader, 1)
        assert (third.message_id, third.attempt, third.last_error) == (first.message_id, 3, "the shop is closed")
        with pytest.raises(StaleReceipt) as stale:
            await reader.ack(second)
        assert stale.value.receipt_handle == second.receipt_handle
        await reader.ack(third)
    assert await lag(client, topic, group) == 0


@both_forms
async def test_a_batch_is_acked_and_nacked(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(queues=2), await client.make_group()
    await fill(broker.endpoint, topic, [f"{number}" for number in range(40)])
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        taken = await take(reader, 40)
        done, again = taken[::2], taken[1::2]
        await reader.ack(done)
        assert await reader.nack(again, delay=0, reason="not now") == [None] * 20
        returned = await take(reader, 20)
        assert Counter(texts(returned)) == Counter(texts(again))
        assert {(message.attempt, message.last_error) for message in returned} == {(2, "not now")}
        # Old receipts among good ones: those are named, the others count.
        with pytest.raises(BatchReceiptsRefused) as refused:
            await reader.ack([*again[:3], *returned])
        assert [type(error) for error in refused.value.refused] == [StaleReceipt] * 3
        assert [error.receipt_handle for error in refused.value.refused] == [
            message.receipt_handle for message in again[:3]
        ]
        await reader.ack([])
        assert await reader.nack([]) == []
        assert await lag(client, topic, group) == 0


@both_forms
async def test_the_last_nack_tells_where_the_dead_letter_lies(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("readers")
    wanted = admin_pb2.ConsumerGroup(name=group, max_attempts=2)
    await client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await fill(broker.endpoint, topic, ["good", "bad", "worse"])
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        good, *others = await take(reader, 3)
        await reader.ack(good)
        assert await reader.nack(others, delay=0, reason="broken") == [None, None]
        bad, worse = sorted(await take(reader, 2), key=lambda message: message.offset)
        places = await reader.nack([bad, worse], reason="still broken")
        dead = f"%DLQ%{group}"
        assert [(place.topic, place.offset) for place in places if place] == [(dead, 0), (dead, 1)]
    assert await client.bodies(dead) == ["bad", "worse"]
    assert all(isinstance(place, LogPosition) for place in places)
    assert await lag(client, topic, group) == 0


@both_forms
@pytest.mark.parametrize("waiting", [False, True], ids=["comes later", "waits already"])
async def test_close_gives_back_at_once_what_was_not_handled(
    form: Form, waiting: bool, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    bodies = [f"{number}" for number in range(30)]
    await fill(broker.endpoint, topic, bodies)
    first = consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE)
    second = consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE)
    async with first:
        # All others are in that process, or on their way to it.
        handled, refused, at_work = await take(first, 3)
        await first.ack(handled)
        await first.nack(refused, delay=0, reason="not now")
        if waiting:
            await second.wait_until_subscribed(PATIENCE)
    async with second:
        returned = {message.text: message for message in await take(second, 29)}
        assert set(returned) == set(bodies) - {handled.text}
        # A nack counts as an attempt. What was only held does not.
        assert returned.pop(refused.text).attempt == 2
        assert {(message.attempt, message.last_error) for message in returned.values()} == {(1, None)}
        with pytest.raises(ClientClosed):
            await first.ack(at_work)
        assert await first.receive(timeout=PATIENCE) == []


async def test_a_message_that_always_raises_ends_as_a_dead_letter(client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), unique("readers")
    wanted = admin_pb2.ConsumerGroup(name=group, max_attempts=2)
    await client.call(client.admin.CreateGroup, admin_pb2.CreateGroupRequest(group=wanted))
    await fill(broker.endpoint, topic, ["poison"])
    attempts = []
    for _ in range(2):
        with pytest.raises(LookupError):
            async with AsyncConsumer(broker.endpoint, group, topic) as reader:
                async for message in reader:
                    attempts.append(message.attempt)
                    raise LookupError(message.text)
    assert attempts == [1, 2]
    assert await client.bodies(f"%DLQ%{group}") == ["poison"]


@both_forms
async def test_close_gives_back_to_a_consumer_that_waits_on_another_broker(
    form: Form, server_kind: AnyKind, brokers: Brokers, new_broker: Callable[..., BrokerProcess]
) -> None:
    url = brokers.database(server_kind)
    here, there = new_broker(url), new_broker(url)
    async with Client(here.endpoint) as client:
        topic, group = await client.make_topic(), await client.make_group()
        await fill(here.endpoint, topic, ["one", "two", "three"])
        first = consumer(form, here.endpoint, group, topic, lease_duration=LONG_LEASE)
        second = consumer(form, there.endpoint, group, topic, lease_duration=LONG_LEASE)
        async with first:
            assert texts(await take(first, 3)) == ["one", "two", "three"]
            await second.wait_until_subscribed(PATIENCE)
        async with second:
            assert sorted(texts(await take(second, 3))) == ["one", "three", "two"]


@both_forms
async def test_two_consumers_share_the_work_of_a_group(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(queues=2), await client.make_group()
    bodies = [f"{number}" for number in range(200)]
    handled: dict[str, list[AsyncReceivedMessage]] = {"first": [], "second": []}

    async def work(name: str, reader: AsyncConsumer) -> None:
        # Both have one before either goes on: the other cannot have it all, for it has room for 10.
        held = await take(reader, 1)
        async with asyncio.timeout(PATIENCE):
            await both.wait()
        while held:
            handled[name] += held
            await reader.ack(held)
            if sum(map(len, handled.values())) >= len(bodies):
                for each in readers:
                    each.stop()
            held = await reader.receive(3, timeout=PATIENCE)

    both = asyncio.Barrier(2)
    readers = [
        consumer(form, broker.endpoint, group, topic, prefetch=10, client_id=name, lease_duration=LONG_LEASE)
        for name in handled
    ]
    async with readers[0], readers[1]:
        for reader in readers:
            await reader.wait_until_subscribed(PATIENCE)
        await fill(broker.endpoint, topic, bodies)
        await asyncio.gather(*(work(name, reader) for name, reader in zip(handled, readers, strict=True)))
    messages = [message for part in handled.values() for message in part]
    assert Counter(texts(messages)) == Counter(bodies)
    assert {message.attempt for message in messages} == {1}
    assert all(handled.values())
    assert await lag(client, topic, group) == 0
