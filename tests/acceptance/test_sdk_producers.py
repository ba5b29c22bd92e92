"""Producers of ordinary messages in both forms, against real brokers on every database."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from acceptance.client import COMMITTED, PATIENCE, Client, new_id
from acceptance.lossy_link import LossyLink
from acceptance.sdk_forms import Form, both_forms, producer, transaction_producer
from consumer_sdk import AsyncQueueReader
from producer_sdk import (
    BatchRefused,
    BrokerUnavailable,
    LogPosition,
    Message,
    Producer,
    RequestRefused,
    RetryConfig,
    TransactionState,
)

if TYPE_CHECKING:
    from support.brokers import BrokerProcess


@both_forms
async def test_what_is_sent_lies_where_send_says(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    async with producer(form, broker.endpoint) as sender:
        plain = await sender.send(topic, "three apples")
        rich = await sender.send(
            topic, b"\x00\xff", tag="fruit", keys=["k1", "k2"], properties={"colour": "red"}, message_group="customer 7"
        )
    assert (plain, rich) == (
        LogPosition(topic, 0, 0, plain.message_id),
        LogPosition(topic, 0, 1, rich.message_id),
    )
    async with AsyncQueueReader(broker.endpoint) as reader:
        first, second = (await reader.read_queue(topic, 0, 0)).messages
    assert (first.text, first.tag, first.keys, first.message_group) == ("three apples", None, (), None)
    assert (second.body, second.tag, second.keys) == (b"\x00\xff", "fruit", ("k1", "k2"))
    assert (second.properties["colour"], second.message_group) == ("red", "customer 7")
    assert [first.message_id, second.message_id] == [plain.message_id, rich.message_id]


@both_forms
async def test_many_are_sent_in_the_order_of_the_call(form: Form, client: Client, broker: BrokerProcess) -> None:
    orders, invoices = await client.make_topic(), await client.make_topic("invoices")
    # More than one request carries.
    messages = [Message(invoices if number % 3 == 0 else orders, f"{number}") for number in range(1200)]
    async with producer(form, broker.endpoint) as sender:
        assert await sender.send_many([]) == []
        positions = await sender.send_many(messages)
    assert [position.topic for position in positions] == [message.topic for message in messages]
    for topic in (orders, invoices):
        log = await client.log(topic)
        assert [found.body.decode() for found in log] == [
            message.body for message in messages if message.topic == topic
        ]
        placed = [position for position in positions if position.topic == topic]
        assert [(found.offset, found.message_id) for found in log] == [(at.offset, at.message_id) for at in placed]


@both_forms
async def test_one_that_is_refused_does_not_take_the_others_with_it(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic = await client.make_topic()
    messages = [Message(topic, "first"), Message("no-such-topic", "lost"), Message(topic, ""), Message(topic, "last")]
    async with producer(form, broker.endpoint) as sender:
        with pytest.raises(BatchRefused) as refused:
            await sender.send_many(messages)
        with pytest.raises(RequestRefused) as alone:
            await sender.send("no-such-topic", "lost")
    first, lost, empty, last = refused.value.outcomes
    assert [getattr(place, "offset", None) for place in (first, last)] == [0, 1]
    assert isinstance(lost, RequestRefused)
    assert isinstance(empty, RequestRefused)
    assert lost.reason == alone.value.reason == "TOPIC_NOT_FOUND"
    assert await client.bodies(topic) == ["first", "last"]


@both_forms
async def test_the_same_message_id_again_has_one_effect(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    async with producer(form, broker.endpoint) as sender:
        position = await sender.send(topic, "order", message_group="one queue")
        for _ in range(2):
            again = await client.send(topic, "order", message_group="one queue", message_id=position.message_id)
            assert LogPosition.of(again.position) == position
    assert await client.bodies(topic) == ["order"]


@both_forms
async def test_a_send_whose_answer_is_lost_is_repeated_with_one_effect(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic = await client.make_topic()
    async with (
        LossyLink(broker.endpoint) as link,
        AsyncQueueReader(broker.endpoint) as reader,
        producer(form, link.endpoint) as sender,
    ):
        await sender.send(topic, "connected")
        link.lose_answers()
        sending = asyncio.gather(sender.send(topic, "order"), sender.send_many([Message(topic, "1")]))
        await reader.read_queue(topic, 0, 1, wait=PATIENCE)
        link.cut()
        position, many = await sending
        assert {position.offset, *(each.offset for each in many)} == {1, 2}
    assert sorted(await client.bodies(topic)) == ["1", "connected", "order"]


@both_forms
async def test_a_send_that_was_given_up_is_sent_again_under_its_id_with_one_effect(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, impatient = await client.make_topic(), RetryConfig(deadline=0.5, attempt_timeout=0.5)
    async with (
        LossyLink(broker.endpoint) as link,
        AsyncQueueReader(broker.endpoint) as reader,
        producer(form, link.endpoint, retry=impatient) as sender,
        producer(form, broker.endpoint) as later,
    ):
        await sender.send(topic, "connected")
        link.lose_answers()
        with pytest.raises(BrokerUnavailable) as alone:
            await sender.send(topic, "order")
        with pytest.raises(BatchRefused) as many:
            await sender.send_many([Message(topic, "1"), Message(topic, "2")])
        stored = (await reader.read_queue(topic, 0, 1, wait=PATIENCE)).messages
        # The process may be another one by now.
        place = await later.send(topic, "order", message_id=alone.value.message_ids[0])
        assert (place.offset, place.message_id) == (1, stored[0].message_id)
        again = [Message(topic, body, message_id=own) for body, own in zip("12", many.value.message_ids, strict=True)]
        assert sorted(each.offset for each in await later.send_many(again)) == [2, 3]
    assert sorted(await client.bodies(topic)) == ["1", "2", "connected", "order"]


@both_forms
async def test_prepare_and_commit_whose_answers_are_lost_are_repeated_with_one_effect(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, one = await client.make_topic(), new_id()
    async with (
        LossyLink(broker.endpoint) as link,
        AsyncQueueReader(broker.endpoint) as reader,
        transaction_producer(form, link.endpoint, "lossy-shop") as sender,
    ):
        await sender.send(topic, "an ordinary one")
        link.lose_answers()
        preparing = asyncio.create_task(sender.prepare([Message(topic, "order"), Message(topic, "invoice")], one))
        async with asyncio.timeout(PATIENCE):
            while one not in await client.undecided("lossy-shop"):
                pass
        link.cut()
        assert (await preparing).state is TransactionState.PREPARED
        link.lose_answers()
        committing = asyncio.create_task(sender.commit(one))
        await reader.read_queue(topic, 0, 1, wait=PATIENCE)
        link.cut()
        committed = await committing
        assert (committed.state, len(committed.released)) == (TransactionState.COMMITTED, 2)
        # And by the application itself, as often as it likes.
        assert await sender.commit(one) == committed
        late = await sender.prepare([Message(topic, "order"), Message(topic, "invoice")], one)
        assert late.state is TransactionState.COMMITTED
    assert await client.bodies(topic) == ["an ordinary one", "order", "invoice"]
    assert (await client.transaction(one)).state == COMMITTED


async def test_many_threads_share_a_producer(client: Client, broker: BrokerProcess) -> None:
    topic = await client.make_topic()
    with Producer(broker.endpoint) as sender:
        places = await asyncio.gather(*(asyncio.to_thread(sender.send, topic, f"{number}") for number in range(200)))
    assert sorted(place.offset for place in places) == list(range(200))
    bodies = await client.bodies(topic)
    assert [bodies[place.offset] for place in places] == [f"{number}" for number in range(200)]
