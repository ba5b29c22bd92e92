"""Messages that come later, sooner or once, and only those that are wanted: both forms, real brokers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import (
    LONG_LEASE,
    Form,
    admin,
    both_forms,
    consumer,
    fill,
    lag,
    producer,
    take,
    texts,
    transaction_producer,
)
from acceptance.streams import eventually
from consumer_sdk import AsyncQueueReader, SqlFilter, SubscriptionRefused, TagFilter
from producer_sdk import (
    AsyncProducer,
    BatchRecallRefused,
    DuplicateKey,
    Message,
    RecallRefused,
    TransactionState,
)

if TYPE_CHECKING:
    from support.brokers import BrokerProcess


@both_forms
async def test_a_message_comes_when_its_time_has_come(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    async with (
        producer(form, broker.endpoint) as sender,
        consumer(form, broker.endpoint, group, topic) as reader,
    ):
        await reader.wait_until_subscribed(PATIENCE)
        began, due = time.monotonic(), datetime.now(UTC) + timedelta(seconds=1.5)
        later = await sender.send(topic, "later", delay=1.0)
        latest = await sender.send(topic, "latest", deliver_at=due)
        first = await sender.send(topic, "first", delay=0)
        assert (later.queue, later.offset, first.scheduled_at, first.offset) == (None, None, None, 0)
        assert later.scheduled_at is not None
        assert latest.scheduled_at == due
        received = await take(reader, 3)
        assert texts(received) == ["first", "later", "latest"]
        # The broker counts by another clock.
        assert time.monotonic() - began > 1.4
        assert received[2].deliver_at == due
        assert received[1].message_id == later.message_id
        await reader.ack(received)


@both_forms
async def test_what_waits_is_recalled_and_what_was_released_is_not(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic = await client.make_topic()
    async with transaction_producer(form, broker.endpoint, "recalling-shop") as sender:
        waits, other = await sender.send_many([Message(topic, "x", delay=60), Message(topic, "y", delay=60)])
        (recalled_at,) = await sender.recall(waits.message_id)
        assert await sender.recall([waits.message_id]) == [recalled_at]
        there = await sender.send(topic, "z")
        with pytest.raises(RecallRefused) as alone:
            await sender.recall(there.message_id)
        assert (alone.value.reason, alone.value.message_id) == ("ALREADY_RELEASED", there.message_id)
        prepared = await sender.prepare(Message(topic, "half", delay=60))
        with pytest.raises(BatchRecallRefused) as several:
            await sender.recall([other.message_id, prepared.transaction_id, there.message_id])
        done, half, lies = several.value.outcomes
        assert isinstance(done, datetime)
        assert isinstance(half, RecallRefused)
        assert isinstance(lies, RecallRefused)
        assert half.reason == "NOT_COMMITTED"
        committed = await sender.commit(prepared.transaction_id)
        assert committed.released[0].scheduled_at is not None
        await sender.recall(prepared.transaction_id)
        again = await sender.commit(prepared.transaction_id)
        assert again.state is TransactionState.COMMITTED
        assert (again.released[0].queue, again.released[0].scheduled_at) == (None, None)
        assert again.released[0].recalled_at is not None
    assert await client.bodies(topic) == ["z"]


@both_forms
async def test_higher_priorities_come_first(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = unique("orders"), await client.make_group()
    async with admin(form, broker.endpoint) as operator, producer(form, broker.endpoint) as sender:
        made = await operator.create_topic(topic, queues=1, priority_levels=3)
        assert (made.priority_levels, made.queues) == (3, 1)
        await sender.send_many([Message(topic, f"{number}", priority=number % 3) for number in range(9)])
    async with consumer(form, broker.endpoint, group, topic) as reader:
        received = await take(reader, 9)
        assert [message.priority for message in received] == [2] * 3 + [1] * 3 + [0] * 3
        await reader.ack(received)


@both_forms
async def test_a_key_is_taken_once(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    async with transaction_producer(form, broker.endpoint, "deduplicating-shop") as sender:
        first = await sender.send(topic, "order", dedup_key="order-7")
        again = await sender.send(topic, "order", dedup_key="order-7")
        assert (first.duplicate, again.duplicate, again.message_id) == (False, True, first.message_id)
        assert again.offset == first.offset
        with pytest.raises(DuplicateKey) as taken:
            await sender.prepare(Message(topic, "order", dedup_key="order-7"))
        assert (taken.value.reason, taken.value.owner) == ("DEDUP_KEY_TAKEN", first.message_id)
        half = await sender.prepare(Message(topic, "order", dedup_key="order-8"))
        with pytest.raises(DuplicateKey) as pending:
            await sender.send(topic, "order", dedup_key="order-8")
        assert (pending.value.reason, pending.value.owner) == ("DEDUP_KEY_PENDING", half.transaction_id)
        await sender.rollback(half.transaction_id)
        assert not (await sender.send(topic, "order", dedup_key="order-8")).duplicate
    async with AsyncQueueReader(broker.endpoint) as reader:
        assert [found.dedup_key for found in (await reader.read_queue(topic, 0, 0)).messages] == ["order-7", "order-8"]


@both_forms
async def test_only_what_a_group_wants_is_delivered(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, other = await client.make_topic(), await client.make_topic("invoices")
    async with AsyncProducer(broker.endpoint) as sender:
        for name in (topic, other):
            for number, tag in enumerate(["paid", "opened", "refunded", "paid"]):
                await sender.send(name, f"{number}", tag=tag, properties={"amount": str(number)})

    async def delivered(group: str, count: int, **options: object) -> list[tuple[str, str]]:
        async with consumer(form, broker.endpoint, group, [topic, other], **options) as reader:
            received = await take(reader, count)
            await reader.ack(received)
            assert await reader.receive(timeout=0) == []
            return sorted((message.topic == other, message.text) for message in received)  # type: ignore[misc]

    group = await client.make_group()
    assert await delivered(group, 6, filter=TagFilter("paid || refunded")) == [
        (late, text) for late in (False, True) for text in ("0", "2", "3")
    ]
    with pytest.raises(SubscriptionRefused):
        await delivered(group, 1, filter=TagFilter("opened"))
    async with consumer(
        form, broker.endpoint, group, topic, filter=TagFilter("opened"), replace_filters=True
    ) as reader:
        await reader.wait_until_subscribed(PATIENCE)
    wanted = {topic: SqlFilter("amount > 1 AND halfmq.tag = 'paid'"), other: SqlFilter("amount = 0")}
    assert await delivered(await client.make_group(), 2, filter=wanted) == [(False, "3"), (True, "0")]
    async with consumer(form, broker.endpoint, await client.make_group(), topic) as reader:
        piece = await reader.read_queue(topic, 0, 0, filter=TagFilter("opened"))
        assert ([message.text for message in piece.messages], piece.max_offset) == (["1"], 4)


@both_forms
async def test_a_group_begins_where_it_is_told_to(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    await fill(broker.endpoint, topic, ["old"])
    async with AsyncQueueReader(broker.endpoint) as reader:
        (old,) = (await reader.read_queue(topic, 0, 0)).messages
        (now,) = await reader.queue_offsets(topic, time=old.stored_at + timedelta(microseconds=1))
        (then,) = await reader.queue_offsets(topic, time=old.stored_at)
        assert (now.offset_at_time, then.offset_at_time, then.lag_time) == (1, 0, None)
    for start, expected in (
        ("latest", ["new"]),
        (old.stored_at + timedelta(microseconds=1), ["new"]),
        (old.stored_at, ["old", "new"]),
        ("earliest", ["old", "new"]),
        (None, ["old", "new"]),
    ):
        one = await client.make_topic()
        await fill(broker.endpoint, one, ["old"])
        async with AsyncQueueReader(broker.endpoint) as queues:
            (first,) = (await queues.read_queue(one, 0, 0)).messages
        place = start
        if isinstance(start, datetime):
            place = first.stored_at + (start - old.stored_at)
        group = await client.make_group()
        async with consumer(form, broker.endpoint, group, one, start=place, lease_duration=LONG_LEASE) as reader:
            await reader.wait_until_subscribed(PATIENCE)
            await fill(broker.endpoint, one, ["new"])
            received = await take(reader, len(expected))
            assert texts(received) == expected
            await reader.ack(received)
            (offsets,) = await reader.queue_offsets(one, group)
            assert (offsets.lag, offsets.lag_time) == (0, None)


@both_forms
async def test_few_large_messages_wait_at_a_consumer(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    size, count, most = 100_000, 30, 5
    async with producer(form, broker.endpoint) as sender:
        for _ in range(count):
            await sender.send(topic, bytes(size))
        # Larger than all that may wait.
        await sender.send(topic, bytes(size * 2 * most))
        await sender.send(topic, b"last")
    async with (
        admin(form, broker.endpoint) as operator,
        consumer(form, broker.endpoint, group, topic, prefetch_bytes=size * most, lease_duration=LONG_LEASE) as reader,
    ):
        received = await take(reader, 1)
        progress = await eventually(
            lambda: operator.group_progress(group, topic),
            lambda found: sum(each.next_offset for each in found) >= most,
        )
        assert sum(each.next_offset for each in progress) == most
        received += await take(reader, count + 1)
        found = sorted(len(message.body) for message in received)
        assert found == [len("last"), *[size] * count, size * 2 * most]
        await reader.ack(received)
    assert await lag(client, topic, group) == 0
