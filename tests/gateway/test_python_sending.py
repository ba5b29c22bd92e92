"""What official producers send, and what official consumers get of it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.rocketmq import ClientError, await_handled, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient


def test_a_message_comes_with_all_that_it_was_sent_with(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    began = time.time()
    body = bytes(range(256)) + "grüezi 你好".encode()
    properties = {"country": "CH", "note": "schön, 好", "amount": "12.50"}
    producer = python.producer(broker.endpoint, topic)
    receipt = producer.send(topic, body, tag="paid", keys=["order-1", "customer 7"], properties=properties)
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    (message,) = consumer.receive()
    consumer.ack(message)
    assert message.topic == topic
    assert message.body == body
    assert message.tag == "paid"
    assert message.keys == {"order-1", "customer 7"}
    assert message.properties == properties
    assert message.message_id == receipt.message_id
    assert len(message.message_id) == 34
    assert message.message_type == "NORMAL"
    assert message.message_group is None
    assert message.born_host
    assert message.attempt == 1
    assert not message.corrupted
    assert message.sent_out_at is not None
    # The clocks are one, and times are cut to milliseconds on their way.
    assert began - 0.01 < message.born_at / 1000 <= message.sent_out_at / 1000 < time.time() + 0.01


def test_messages_without_anything_but_a_body_have_nothing_else(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint)  # Without a topic: it learns where to send when it does.
    receipt = producer.send(topic, b"\x00")
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    (message,) = consumer.receive_all(1)
    assert (message.message_id, message.body) == (receipt.message_id, b"\x00")
    assert (message.tag, message.keys, message.properties) == (None, frozenset(), {})
    assert (message.message_group, message.deliver_at, message.priority) == (None, 0, 0)
    assert receipt.transaction_id == ""
    assert receipt.recall_handle == ""


def test_a_body_may_have_four_mebibytes_and_no_more(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint, topic)
    body = bytes(range(256)) * 16384
    producer.send(topic, body)
    with pytest.raises(ClientError, match="4194304 bytes") as refused:
        producer.send(topic, body + b".")
    assert refused.value.kind == "IllegalArgumentException"
    (message,) = python.simple_consumer(broker.endpoint, group, topic).receive_all(1)
    assert message.body == body
    assert not message.corrupted


def test_what_a_message_cannot_be_is_refused_with_the_field_at_fault(
    broker: BrokerProcess, python: OfficialClient, topic: str
) -> None:
    producer = python.producer(broker.endpoint, topic)
    for fields, code, field in (
        ({"properties": {f"p{number}": "1" for number in range(129)}}, "MESSAGE_PROPERTIES_TOO_LARGE", "properties"),
        ({"properties": {"note": "x" * 17_000}}, "MESSAGE_PROPERTIES_TOO_LARGE", "properties"),
        ({"properties": {"halfmq.note": "1"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY", "properties"),
        ({"tag": "a\nb"}, "ILLEGAL_MESSAGE_TAG", "tag"),
        ({"message_group": "g" * 300}, "ILLEGAL_MESSAGE_GROUP", "message_group"),
        ({"deliver_at": int(time.time()) + 25 * 3600}, "ILLEGAL_DELIVERY_TIME", "deliver"),
    ):
        with pytest.raises(ClientError) as refused:
            producer.send(topic, "order", **fields)
        assert refused.value.code == code
        assert field in refused.value.text


def test_thousands_of_messages_sent_in_the_background_are_each_consumed_once_by_consumers_in_two_processes(
    broker: BrokerProcess,
    python: OfficialClient,
    new_python: Callable[..., OfficialClient],
    topic: str,
    group: str,
    admin: Admin,
) -> None:
    one = python.push_consumer(broker.endpoint, group, topic)
    other = new_python().push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic)
    sent = [f"order {number}" for number in range(3000)]
    receipts = producer.send_many(topic, sent)
    assert len({receipt.message_id for receipt in receipts}) == 3000
    await_handled(admin, group, topic)
    assert Counter(one.received.texts() + other.received.texts()) == Counter(sent)
    assert one.received.all()
    assert other.received.all()
    by_body = {message.text: message.message_id for message in one.received.all() + other.received.all()}
    assert [by_body[body] for body in sent] == [receipt.message_id for receipt in receipts]


def test_a_delayed_message_comes_at_its_time_and_not_before(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic)
    deliver_at = int(time.time()) + 3
    receipt = producer.send(topic, "later", deliver_at=deliver_at)
    producer.send(topic, "now")
    producer.send(topic, "late", deliver_at=int(time.time()) - 100)
    consumer.received.await_text("now")
    consumer.received.await_text("late")
    message = consumer.received.await_text("later")
    assert deliver_at <= message.seen_at < deliver_at + 20
    assert message.deliver_at == deliver_at * 1000
    assert message.message_type == "DELAY"
    assert message.message_id == receipt.message_id
    assert message.attempt == 1


def test_a_recalled_message_never_comes(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic)
    deliver_at = int(time.time()) + 3
    for in_background in (False, True):
        recalled = producer.send(topic, f"recalled {in_background}", deliver_at=deliver_at)
        assert producer.recall(topic, recalled.recall_handle, in_background=in_background) == recalled.message_id
    producer.send(topic, "kept", deliver_at=deliver_at + 1)
    consumer.received.await_text("kept")
    await_handled(admin, group, topic)
    assert consumer.received.texts() == ["kept"]


def test_a_message_is_recalled_as_often_as_it_is_asked_for(
    broker: BrokerProcess, python: OfficialClient, topic: str
) -> None:
    # The first answer may have been lost on its way.
    producer = python.producer(broker.endpoint, topic)
    waiting = producer.send(topic, "recalled", deliver_at=int(time.time()) + 600)
    assert [producer.recall(topic, waiting.recall_handle) for _ in range(2)] == [waiting.message_id] * 2


def test_a_message_cannot_be_recalled_after_its_time_nor_by_a_bad_handle(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint, topic)

    def refused(handle: str) -> str:
        with pytest.raises(ClientError, match="recall_handle: ") as error:
            producer.recall(topic, handle)
        assert (error.value.kind, error.value.code) == ("BadRequestException", "BAD_REQUEST")
        return error.value.text

    delivered = producer.send(topic, "delivered", deliver_at=int(time.time()) + 2)
    python.simple_consumer(broker.endpoint, group, topic).receive_all(1)
    assert "in the log already" in refused(delivered.recall_handle)
    assert "No message waits under this recall handle" in refused("nothing of this name")
    assert "No message waits under this recall handle" in refused("01" + "00" * 16)
    assert "is missing" in refused(" ")


def test_messages_of_a_higher_priority_come_first(
    broker: BrokerProcess, python: OfficialClient, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    topic = admin.create_topic(unique("urgent"), priority_levels=3).name
    producer = python.producer(broker.endpoint, topic)
    for priority in (0, 2, 1, 2, 0, 1):
        producer.send(topic, f"priority {priority}", priority=priority)
    messages = python.simple_consumer(broker.endpoint, group, topic).receive_all(6)
    assert [message.priority for message in messages] == [2, 2, 1, 1, 0, 0]
    assert texts(messages) == [f"priority {message.priority}" for message in messages]
    assert {message.message_type for message in messages[:4]} == {"PRIORITY"}


def test_a_priority_that_its_topic_does_not_have_is_refused(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    leveled = admin.create_topic(unique("urgent"), priority_levels=3).name
    producer = python.producer(broker.endpoint, topic, leveled)
    with pytest.raises(ClientError, match="message type not match"):
        producer.send(topic, "urgent", priority=1)  # The client knows it from the topic's route.
    with pytest.raises(ClientError, match="priority: ") as refused:
        producer.send(leveled, "too urgent", priority=3)
    assert refused.value.code == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


def test_a_topic_that_is_not_there_is_not_made(
    broker: BrokerProcess, python: OfficialClient, group: str, unique: Callable[[str], str], admin: Admin
) -> None:
    missing = unique("missing")
    producer = python.producer(broker.endpoint)
    with pytest.raises(ClientError, match="failed to fetch topic"):
        producer.send(missing, "lost")
    consumer = python.simple_consumer(broker.endpoint, group, missing)
    with pytest.raises(ClientError, match="failed to fetch topic"):
        consumer.receive()
    assert missing not in [each.name for each in admin.list_topics()]
    admin.create_topic(missing)  # And from now on it is there, for clients that looked for it, too.
    producer.send(missing, "found")
    assert texts(consumer.receive_all(1)) == ["found"]


def test_a_consumer_group_that_is_not_there_is_not_made(
    broker: BrokerProcess, python: OfficialClient, topic: str, unique: Callable[[str], str], admin: Admin
) -> None:
    missing = unique("missing")
    consumer = python.simple_consumer(broker.endpoint, missing, topic)
    with pytest.raises(ClientError) as refused:
        consumer.receive()
    assert (refused.value.kind, refused.value.code) == ("NotFoundException", "CONSUMER_GROUP_NOT_FOUND")
    assert missing in refused.value.text
    admin.create_group(missing)
    python.producer(broker.endpoint).send(topic, "found")
    assert texts(consumer.receive_all(1)) == ["found"]


def test_a_broker_that_makes_topics_and_groups_makes_them_for_official_clients(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite", auto_create=True, auto_create_groups=True)
    topic, group = unique("new"), unique("new")
    python.producer(broker.endpoint, topic).send(topic, "first")
    consumer = python.push_consumer(broker.endpoint, group, topic)
    assert consumer.received.await_text("first").topic == topic
    # Nothing was sent there before its consumer came.
    read_first = unique("new")
    consumer = python.push_consumer(broker.endpoint, unique("new"), read_first)
    python.producer(broker.endpoint, read_first).send(read_first, "second")
    consumer.received.await_text("second")


def test_clients_find_the_broker_by_the_name_of_its_host(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    endpoint = f"localhost:{broker.endpoint.rpartition(':')[2]}"
    consumer = python.push_consumer(endpoint, group, topic)
    receipt = python.producer(endpoint, topic).send(topic, "order")
    assert receipt.broker == endpoint
    assert consumer.received.await_text("order").broker == endpoint


def test_namespaces_keep_topics_of_one_name_apart(
    broker: BrokerProcess, python: OfficialClient, admin: Admin, unique: Callable[[str], str]
) -> None:
    topic, group, namespaces = unique("orders"), unique("shop"), [unique("north"), unique("south")]
    for namespace in namespaces:
        admin.create_topic(f"{namespace}%{topic}")
        admin.create_group(f"{namespace}%{group}")
        python.producer(broker.endpoint, topic, namespace=namespace).send(topic, f"order in {namespace}")
    for namespace in namespaces:
        consumer = python.simple_consumer(broker.endpoint, group, topic, namespace=namespace)
        (message,) = consumer.receive_all(1)
        assert (message.topic, message.text) == (topic, f"order in {namespace}")
