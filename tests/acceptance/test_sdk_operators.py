"""The client for operators in both forms, against real brokers on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from acceptance.client import Client, unique
from acceptance.sdk_forms import LONG_LEASE, Form, admin, both_forms, consumer, everything, fill, take, texts
from consumer_sdk import ExhaustedPolicy, GroupMode, SqlFilter, TagFilter, TimelineEventType
from producer_sdk import AsyncProducer, Message, RequestRefused, TransactionState

if TYPE_CHECKING:
    from support.brokers import BrokerProcess


@both_forms
async def test_topics_and_groups_are_made_changed_and_deleted(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = unique("orders"), unique("readers")
    async with admin(form, broker.endpoint) as operator:
        made = await operator.create_topic(topic, queues=2, retention=timedelta(days=2), dedup_window=60)
        assert (made.queues, made.retention, made.dedup_window) == (2, timedelta(days=2), timedelta(minutes=1))
        assert await operator.create_topic(topic, queues=5, exist_ok=True) == made
        with pytest.raises(RequestRefused) as exists:
            await operator.create_topic(topic)
        assert exists.value.reason == "TOPIC_EXISTS"
        changed = await operator.update_topic(topic, queues=4, retention_bytes=1 << 30)
        assert (changed.queues, changed.retention_bytes, changed.retention) == (4, 1 << 30, made.retention)
        assert await operator.get_topic(topic) == changed
        mine = await operator.create_group(group, max_attempts=3, retry_delays=[1, 5], start="latest")
        assert (mine.max_attempts, mine.retry_delays) == (3, (timedelta(seconds=1), timedelta(seconds=5)))
        assert (mine.mode, mine.start, mine.filters) == (GroupMode.CLUSTERING, "latest", {})
        assert (await operator.create_group(group, exist_ok=True)).name == group
        retrying = await operator.update_group(group, when_exhausted=ExhaustedPolicy.RETRY)
        assert (retrying.when_exhausted, retrying.max_attempts) == (ExhaustedPolicy.RETRY, 3)
        paused = await operator.pause_group(group, "the shop is closed")
        assert paused.paused_at is not None
        assert paused.pause_reason == "the shop is closed"
        assert (await operator.resume_group(group)).paused_at is None
        for wanted in (TagFilter("paid || refunded"), SqlFilter("amount > 10")):
            assert (await operator.set_filter(group, topic, wanted)).filters == {topic: wanted}
        assert (await operator.set_filter(group, topic, None)).filters == {}
        await operator.delete_group(group)
        await operator.delete_group(group, missing_ok=True)
        await operator.delete_topic(topic)
        await operator.delete_topic(topic, missing_ok=True)
        with pytest.raises(RequestRefused) as missing:
            await operator.get_group(group)
        assert missing.value.reason == "GROUP_NOT_FOUND"


@both_forms
async def test_a_group_is_moved(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill(broker.endpoint, topic, [f"{number}" for number in range(5)])
    async with admin(form, broker.endpoint) as operator:
        async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
            messages = await take(reader, 5)
            await reader.ack(messages)
        (stands,) = await operator.group_progress(group, topic)
        assert (stands.committed_offset, stands.lag, stands.lag_time) == (5, 0, None)
        for to, queue, first in (("earliest", None, 0), (3, 0, 3), (messages[2].stored_at, None, 2)):
            await operator.seek_group(group, topic, to, queue=queue)
            async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
                again = await take(reader, 1)
                assert again[0].offset <= first
                if not isinstance(to, type(messages[2].stored_at)):
                    assert again[0].offset == first
        (stands,) = await operator.seek_group(group, topic, "latest")
        assert (stands.next_offset, stands.lag) == (5, 0)


@both_forms
async def test_dead_letters_are_listed_and_driven_again(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), unique("readers")
    async with admin(form, broker.endpoint) as operator:
        await operator.create_group(group, max_attempts=1)
        async with AsyncProducer(broker.endpoint) as sender:
            await sender.send_many([Message(topic, f"{n}", tag="even" if n % 2 == 0 else "odd") for n in range(4)])
        async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
            await reader.nack(await take(reader, 4), reason="boom")
            letters = await everything(operator.list_dead_letters(group))
            assert sorted(letter.message.text for letter in letters) == ["0", "1", "2", "3"]
            assert {(letter.origin.topic, letter.reason, letter.attempts) for letter in letters} == {(topic, "boom", 1)}
            assert {letter.redriven_at for letter in letters} == {None}
            steps = await everything(operator.redrive(group, filter=TagFilter("even")))
            assert (steps[-1].redriven, steps[-1].done) == (2, True)
            again = await take(reader, 2)
            assert sorted(texts(again)) == ["0", "2"]
            await reader.ack(again)
        letters = await everything(operator.list_dead_letters(group, filter=TagFilter("even")))
        assert len(letters) == 2
        assert all(letter.redriven_at is not None for letter in letters)


@both_forms
async def test_messages_are_found_and_tell_what_happened(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    async with AsyncProducer(broker.endpoint) as sender:
        first, second = await sender.send_many(
            [Message(topic, f"{n}", keys=[f"order-{n}"], tag=f"tag-{n}") for n in range(2)]
        )
        waits = await sender.send(topic, "later", delay=600)
    async with admin(form, broker.endpoint) as operator:
        lies = await operator.get_message(first.message_id)
        assert lies.state is TransactionState.COMMITTED
        assert lies.message is not None
        assert (lies.message.text, lies.waiting, lies.scheduled_at) == ("0", None, None)
        later = await operator.get_message(waits.message_id)
        assert later.waiting is not None
        assert (later.message, later.waiting.text, later.scheduled_at) == (None, "later", waits.scheduled_at)
        by_key = await everything(operator.find_messages(topic, key="order-1"))
        assert [message.message_id for message in by_key] == [second.message_id]
        born = lies.message.stored_at
        everywhere = await everything(
            operator.find_messages(topic, since=born - timedelta(seconds=1), until=born + timedelta(seconds=60))
        )
        assert texts(everywhere) == ["0", "1"]
        behind = await everything(operator.find_messages(topic, queue=0, offset=1))
        assert texts(behind) == ["1"]
        filtered = await everything(operator.find_messages(topic, filter=SqlFilter("halfmq.tag = 'tag-0'")))
        assert texts(filtered) == ["0"]
        events = await operator.timeline(first.message_id)
        released = next(event for event in events if event.type is TimelineEventType.RELEASED)
        assert released.position is not None
        assert (released.position.topic, released.position.offset) == (topic, 0)
