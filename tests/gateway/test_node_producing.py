"""RocketMQ's producer for Node: its start, what it sends, and what is refused."""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from broker.rocketmq.protocol import Code
from producer_sdk import Message
from producer_sdk import Producer as NativeProducer
from support.gateways import eventually, texts, unique
from support.node import NodeError, NodeProcess, own_id

if TYPE_CHECKING:
    from consumer_sdk import StoredMessage
    from support.gateways import Gateway
    from support.node import NodeMessage


@pytest.mark.parametrize("topics", [1, 2, 6])
def test_a_producer_starts_with_any_number_of_topics(gateway: Gateway, topics: int) -> None:
    names = [gateway.topic() for _ in range(topics)]
    # A process of its own: where a connection is open already, the start is another one.
    with NodeProcess(gateway.endpoint) as process:
        producer = process.producer(*names)
        for name in names:
            producer.send(name, name)
    assert [gateway.bodies(name) for name in names] == [[name] for name in names]


def test_a_producer_without_topics_finds_them_when_it_sends(gateway: Gateway, node: NodeProcess) -> None:
    names = [gateway.topic(), gateway.topic()]
    producer = node.producer()
    for name in names:
        producer.send(name, "hello")
    assert [gateway.bodies(name) for name in names] == [["hello"], ["hello"]]


def test_a_producer_of_an_unknown_topic_is_told_so(gateway: Gateway, node: NodeProcess) -> None:
    unknown = unique("nowhere")
    starting = node.begin_producer(unknown)
    with pytest.raises(NodeError, match=unknown) as refused:
        node.producer().send(unknown, "hello")
    assert (refused.value.name, refused.value.code) == ("NotFoundException", Code.TOPIC_NOT_FOUND)
    with pytest.raises(NodeError, match=unknown) as refused:
        starting.started()
    assert refused.value.code == Code.TOPIC_NOT_FOUND


def test_a_producer_that_is_shut_down_says_goodbye(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic)
    producer.send(topic, "hello")
    producer.shutdown()
    node.producer(topic).send(topic, "again")
    assert gateway.bodies(topic) == ["again", "hello"]


KINDS: dict[str, dict[str, Any]] = {
    "normal": {"tag": "fruit", "keys": ["order-7", "käse"], "properties": {"color": "red", "size": "größer"}},
    "bare": {},
    "fifo": {"message_group": "customer-7", "tag": "fruit"},
    "delay": {"delay": 700, "keys": ["later"]},
    "priority": {"priority": 2, "properties": {"color": "blue"}},
    "transaction": {"tag": "paid", "keys": ["order-8"], "properties": {"color": "green"}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_every_type_come_to_every_client_as_they_were_sent(
    gateway: Gateway, node: NodeProcess, kind: str
) -> None:
    topic, fields = gateway.topic(priority_levels=3), KINDS[kind]
    producer = node.producer(topic, usual="unknown")
    before = time.time()
    if kind == "transaction":
        receipt = producer.half(topic, kind, **fields)
        assert uuid.UUID(receipt.transaction_id) == uuid.UUID(own_id(receipt.message_id))
        producer.commit(receipt)
    else:
        receipt = producer.send(topic, kind, **fields)
        assert receipt.transaction_id == ""
    assert bool(receipt.recall_handle) == (kind == "delay")
    (theirs,) = node.simple_consumer(gateway.group(), topic).take(1)
    (ours,) = gateway.take(gateway.group(), topic, 1)
    assert ours.message_id == own_id(receipt.message_id)
    assert theirs.message_id == receipt.message_id
    assert (theirs.topic, theirs.body, theirs.corrupted, theirs.attempt) == (topic, kind.encode(), False, 1)
    for seen in (theirs, ours):
        assert seen.body == kind.encode()
        assert seen.tag == fields.get("tag")
        assert seen.keys == tuple(fields.get("keys", ()))
        assert seen.message_group == fields.get("message_group")
        assert seen.priority == fields.get("priority", 0)
    assert theirs.properties == fields.get("properties", {})
    assert {key: ours.properties[key] for key in theirs.properties} == theirs.properties
    assert theirs.born_host == os.uname().nodename
    assert theirs.born_at is not None
    assert before - 1 < theirs.born_at < time.time() + 1
    if kind == "delay":
        assert theirs.deliver_at is not None
        assert ours.deliver_at is not None
        assert ours.deliver_at.timestamp() == pytest.approx(theirs.deliver_at, abs=0.0011)
        assert theirs.deliver_at == pytest.approx(before + 0.7, abs=20)
    else:
        assert (theirs.deliver_at, ours.deliver_at) == (None, None)


def test_messages_of_halfmqs_own_producer_come_to_node_as_they_were_sent(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic(priority_levels=3)
    sent = {
        "everything": Message(topic, "everything", tag="t", keys=("a", "b"), properties={"x": "y", "größe": "ü"}),
        "grouped": Message(topic, "grouped", message_group="customer-7"),
        "urgent": Message(topic, "urgent", priority=2),
        "late": Message(topic, "late", delay=0.5),
        "once": Message(topic, "once", dedup_key="order-7"),
    }
    pushed = node.push_consumer(gateway.group(), topic)
    with NativeProducer(gateway.endpoint) as producer:
        positions = dict(zip(sent, producer.send_many(list(sent.values())), strict=True))
    received = node.simple_consumer(gateway.group(), topic).take(len(sent))
    for messages in (received, pushed.until(len(sent))):
        assert sorted(texts(messages)) == sorted(sent)
        for message in messages:
            own = sent[message.text]
            assert own_id(message.message_id) == positions[message.text].message_id
            assert (message.topic, message.tag, message.keys) == (topic, own.tag, tuple(own.keys))
            assert (message.message_group, message.priority) == (own.message_group, own.priority)
            assert {key: message.properties[key] for key in own.properties} == own.properties
            assert (message.corrupted, message.attempt) == (False, 1)
            assert (message.deliver_at is None) == (own.delay is None)


# The client takes in 4 MiB at a time, and a message is more than its body.
BODIES = {
    "one byte": b"\0",
    "text": "größer, 大きい, больше \U0001f34e".encode(),
    "every byte": bytes(range(256)) * 16,
    "64 KiB and one": os.urandom(65537),
    "almost 4 MiB": os.urandom(4 * 1024 * 1024 - 4096),
}


def test_bodies_of_every_size_pass_both_ways(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic)
    for name, body in BODIES.items():
        producer.send(topic, body, tag=name)
    backwards = {name: body[::-1] for name, body in BODIES.items()}
    with NativeProducer(gateway.endpoint) as native:
        for name, body in backwards.items():
            native.send(topic, body, tag=f"{name}, backwards")
    wanted = {**BODIES, **{f"{name}, backwards": body for name, body in backwards.items()}}
    pushed = node.push_consumer(gateway.group(), topic)
    found: list[list[StoredMessage] | list[NodeMessage]] = [
        list(gateway.take(gateway.group(), topic, len(wanted))),
        node.simple_consumer(gateway.group(), topic).take(len(wanted)),
        pushed.until(len(wanted)),
    ]
    for messages in found:
        # Not compared as a whole: the difference would be shown for minutes.
        bodies = {message.tag: message.body for message in messages}
        assert sorted(filter(None, bodies)) == sorted(wanted)
        assert [name for name, body in wanted.items() if bodies[name] != body] == []
    assert not any(message.corrupted for message in pushed.messages)


def test_bodies_that_are_too_large_or_empty_are_refused(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic)
    # By the client itself, which was told the broker's limit.
    with pytest.raises(NodeError, match="max size=4194304") as refused:
        producer.send(topic, bytes(4 * 1024 * 1024 + 1))
    assert refused.value.name == "TypeError"
    with pytest.raises(NodeError) as refused:
        producer.send(topic, b"")
    assert refused.value.code == Code.MESSAGE_BODY_EMPTY
    assert gateway.log(topic) == []


def test_what_is_wrong_with_a_message_is_told_by_codes(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic)
    for code, fields in (
        (Code.ILLEGAL_MESSAGE_TAG, {"tag": "fruit|nuts"}),
        (Code.MESSAGE_PROPERTIES_TOO_LARGE, {"properties": {"all": "x" * 70_000}}),
        (Code.ILLEGAL_DELIVERY_TIME, {"delay": 30 * 24 * 3600 * 1000}),
    ):
        with pytest.raises(NodeError) as refused:
            producer.send(topic, "hello", **fields)
        assert refused.value.code == code, refused.value
    # The client knows from the topic's route that it has no priorities.
    with pytest.raises(NodeError, match="type not match") as refused:
        producer.send(topic, "hello", priority=1)
    assert refused.value.name == "TypeError"
    assert gateway.log(topic) == []


def test_message_groups_keep_their_order_and_other_messages_use_all_queues(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic(queues=4)
    producer = node.producer(topic)
    groups = [f"customer-{number}" for number in range(8)]
    for number in range(5):
        for group in groups:
            producer.send(topic, f"{number}", message_group=group)
    stored = gateway.log(topic)
    for group in groups:
        own = [message for message in stored if message.message_group == group]
        assert texts(own) == ["0", "1", "2", "3", "4"]
        assert len({message.queue for message in own}) == 1
    # Although the client thinks that it sends all of them to the first queue.
    assert len({message.queue for message in stored}) > 1


def test_delayed_messages_wait_and_can_be_recalled(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer = node.producer(topic)
    consumer = node.push_consumer(gateway.group(), topic)
    late = producer.send(topic, "late", delay=1500)
    recalled = producer.send(topic, "recalled", delay=1500)
    at = (time.time() + 1.5) * 1000
    timed = producer.send(topic, "timed", deliver_at=int(at))
    assert producer.recall(topic, recalled.recall_handle) == recalled.message_id
    with pytest.raises(NodeError):
        producer.recall(topic, recalled.recall_handle + "0")
    assert sorted(texts(consumer.until(2))) == ["late", "timed"]
    for delivery in consumer.deliveries:
        assert delivery.message is not None
        assert delivery.message.deliver_at is not None
        assert delivery.at > delivery.message.deliver_at - 0.05
    for gone in (late, timed):
        with pytest.raises(NodeError) as refused:
            producer.recall(topic, gone.recall_handle)
        assert f"(code: {Code.BAD_REQUEST})" in str(refused.value)
    # All that waits is released in the order of its time: the recalled one would have come before this one.
    producer.send(topic, "last", delay=100)
    consumer.until(3)
    assert gateway.bodies(topic) == ["last", "late", "timed"]


def test_a_time_that_has_passed_is_at_once(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    receipt = node.producer(topic).send(topic, "hello", deliver_at=int((time.time() - 60) * 1000))
    assert receipt.recall_handle == ""
    assert eventually(lambda: gateway.bodies(topic)) == ["hello"]


def test_higher_priorities_come_first(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic(priority_levels=3)
    producer = node.producer(topic)
    for priority in (0, 1, 2, 0, 1, 2):
        producer.send(topic, f"{priority}", priority=priority)
    consumer = node.simple_consumer(gateway.group(), topic)
    assert texts(consumer.take(6)) == ["2", "2", "1", "1", "0", "0"]
