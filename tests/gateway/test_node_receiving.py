"""RocketMQ's simple consumer for Node: receiving, acknowledging, how long a message is its own; filters."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from broker.rocketmq.protocol import Code
from producer_sdk import Message
from producer_sdk import Producer as NativeProducer
from support.gateways import texts, unique
from support.node import NodeError, NodeProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.gateways import Gateway


def fill(gateway: Gateway, topic: str, bodies: Iterable[str], message_group: str | None = None) -> None:
    with NativeProducer(gateway.endpoint) as producer:
        producer.send_many([Message(topic, body, message_group=message_group) for body in bodies])


def test_acked_messages_do_not_come_again(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(queues=4), gateway.group()
    fill(gateway, topic, (f"{number}" for number in range(100)))
    consumer = node.simple_consumer(group, topic, wait=0.5)
    # The client asks for the first queue only, and for more than it may get at a time.
    first = consumer.receive(100)
    assert 0 < len(first) <= 32
    consumer.ack(*first)
    rest = consumer.take(100 - len(first))
    consumer.ack(*rest)
    assert Counter(texts([*first, *rest])) == Counter(f"{number}" for number in range(100))
    assert gateway.lag(group, topic) == 0
    began = time.monotonic()
    assert consumer.receive() == []
    assert time.monotonic() - began > 0.45


def test_a_call_that_waits_is_woken_by_a_message(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    producer, consumer = node.producer(topic), node.simple_consumer(gateway.group(), topic, wait=60)
    waiting = consumer.begin("receive", most=1, invisible=30_000)
    # By the same connection, and so behind it.
    producer.send(topic, "hello")
    assert len(waiting.result(30)) == 1


def test_messages_that_are_not_acked_come_again_after_their_time(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group()
    fill(gateway, topic, ["dropped", "acked"])
    consumer = node.simple_consumer(group, topic)
    began = time.monotonic()
    taken = {message.text: message for message in consumer.take(2, invisible=1.5)}
    consumer.ack(taken["acked"])
    (again,) = consumer.take(1)
    assert time.monotonic() - began > 1.45
    assert (again.text, again.attempt, again.message_id) == ("dropped", 2, taken["dropped"].message_id)
    assert again.receipt_handle != taken["dropped"].receipt_handle
    with pytest.raises(NodeError) as refused:
        consumer.ack(taken["dropped"])
    assert (refused.value.name, refused.value.code) == ("BadRequestException", Code.INVALID_RECEIPT_HANDLE)
    consumer.ack(again)
    # A second time, as after an answer that was lost.
    consumer.ack(again)
    assert gateway.lag(group, topic) == 0


def test_the_invisible_time_is_changed(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group()
    fill(gateway, topic, ["longer", "shorter", "at once"])
    consumer = node.simple_consumer(group, topic)
    taken = {message.text: message for message in consumer.take(3, invisible=2)}
    handles = {taken["longer"].receipt_handle, *(consumer.change_invisible(taken["longer"], 60) for _ in range(3))}
    assert len(handles) == 4
    began = time.monotonic()
    # Not of whole seconds: milliseconds are sent, too.
    consumer.change_invisible(taken["shorter"], 1.25)
    consumer.change_invisible(taken["at once"], 0)
    first, second = consumer.take(1)[0], consumer.take(1)[0]
    assert time.monotonic() - began > 1.2
    assert [(message.text, message.attempt) for message in (first, second)] == [("at once", 2), ("shorter", 2)]
    consumer.ack(first, second)
    # The first time is over, and yet it is still held, under the handle that the client took from the answer.
    assert consumer.receive() == []
    consumer.ack(taken["longer"])
    assert gateway.lag(group, topic) == 0


def test_exhausted_messages_become_dead_letters(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group(max_attempts=2)
    fill(gateway, topic, ["poison"])
    consumer = node.simple_consumer(group, topic, wait=0.3)
    for attempt in (1, 2):
        (message,) = consumer.take(1)
        assert message.attempt == attempt
        consumer.change_invisible(message, 0)
    assert consumer.receive() == []
    assert gateway.dead_letters(group) == ["poison"]
    # Which are messages like others.
    letters = node.simple_consumer(gateway.group(), f"%DLQ%{group}")
    (letter,) = letters.take(1)
    letters.ack(letter)
    assert letter.text == "poison"


def test_one_consumer_of_several_topics(gateway: Gateway, node: NodeProcess) -> None:
    topics, group = [gateway.topic() for _ in range(4)], gateway.group()
    for topic in topics:
        fill(gateway, topic, [f"{topic} {number}" for number in range(3)])
    consumer = node.simple_consumer(group, *topics, wait=0.2)
    received = consumer.take(12)
    consumer.ack(*received)
    assert sorted(texts(received)) == sorted(f"{topic} {number}" for topic in topics for number in range(3))
    assert all(message.text.startswith(message.topic) for message in received)
    gateway.until_settled(group, *topics)


@pytest.mark.parametrize("fifo", [False, True])
def test_message_groups_wait_for_their_first_message(gateway: Gateway, node: NodeProcess, fifo: bool) -> None:
    topic, group = gateway.topic(queues=1), gateway.group(fifo=fifo)
    fill(gateway, topic, ["1", "2", "3"], message_group="a")
    fill(gateway, topic, ["x"], message_group="b")
    consumer, other = node.simple_consumer(group, topic, wait=0.3), node.simple_consumer(group, topic, wait=0.3)
    received = consumer.take(2 if not fifo else 4)
    assert sorted(texts(received)) == (["1", "x"] if not fifo else ["1", "2", "3", "x"])
    assert other.receive() == []
    consumer.ack(*received)
    seen = [message.text for message in received if message.message_group == "a"]
    while len(seen) < 3:
        (message,) = other.take(1)
        assert message.message_group == "a"
        seen.append(message.text)
        assert consumer.receive() == []
        other.ack(message)
    assert seen == ["1", "2", "3"]
    assert gateway.lag(group, topic) == 0


def test_messages_of_a_group_come_again_in_their_order(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group(fifo=True)
    fill(gateway, topic, ["1", "2", "3"], message_group="a")
    consumer = node.simple_consumer(group, topic)
    first = consumer.take(3, invisible=1)
    consumer.ack(first[0])
    second = consumer.take(2)
    assert [(message.text, message.attempt) for message in second] == [("2", 2), ("3", 1)]


COLORS = {"red": 1, "green": 2, "blue": 3, None: 4}


def painted(gateway: Gateway, topic: str) -> None:
    with NativeProducer(gateway.endpoint) as producer:
        for color, size in COLORS.items():
            producer.send(topic, color or "none", tag=color, properties={"size": f"{size}", "color": color or "none"})


FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({"tag": "*"}, ["blue", "green", "none", "red"]),
    ({"tag": "green"}, ["green"]),
    ({"tag": "red || blue"}, ["blue", "red"]),
    ({"sql": "size > 1 AND size < 4"}, ["blue", "green"]),
    ({"sql": "color IN ('red', 'none')"}, ["none", "red"]),
    ({"sql": "TAGS IS NOT NULL AND TAGS <> 'red'"}, ["blue", "green"]),
]


def test_filters_of_tags_and_of_sql(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    painted(gateway, topic)
    groups = [gateway.group() for _ in FILTERS]
    pushed = [node.push_consumer(group, topic, **wanted) for group, (wanted, _) in zip(groups, FILTERS, strict=True)]
    for wanted, found in FILTERS:
        group = gateway.group()
        simple = node.simple_consumer(group, topic, wait=0.2, **wanted)
        received = simple.take(len(found))
        simple.ack(*received)
        assert (wanted, sorted(texts(received))) == (wanted, found)
        assert simple.receive() == []
        gateway.until_settled(group, topic)
    for consumer, group, (wanted, found) in zip(pushed, groups, FILTERS, strict=True):
        consumer.until(len(found))
        gateway.until_settled(group, topic)
        assert (wanted, sorted(texts(consumer.messages))) == (wanted, found)


def test_a_filter_that_cannot_be_is_refused(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    painted(gateway, topic)
    consumer = node.simple_consumer(gateway.group(), topic, sql="size >")
    with pytest.raises(NodeError) as refused:
        consumer.receive()
    assert refused.value.code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize("kind", ["push_consumer", "simple_consumer"])
def test_consumers_of_an_unknown_group_are_told_so(gateway: Gateway, node: NodeProcess, kind: str) -> None:
    topic, unknown = gateway.topic(), unique("nobody")
    with pytest.raises(NodeError, match=unknown) as refused:
        getattr(node, kind)(unknown, topic)
    assert refused.value.code == Code.CONSUMER_GROUP_NOT_FOUND


def test_a_consumer_that_is_shut_down_leaves_what_it_holds_until_its_time(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group()
    fill(gateway, topic, ["held"])
    leaving = node.simple_consumer(group, topic)
    began = time.monotonic()
    leaving.take(1, invisible=1.5)
    leaving.shutdown()
    (again,) = node.simple_consumer(group, topic).take(1)
    assert time.monotonic() - began > 1.45
    assert again.text == "held"


def test_more_messages_than_one_call_may_carry(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group()
    bodies = [bytes([number]) * 1_500_000 for number in range(8)]
    with NativeProducer(gateway.endpoint) as producer:
        for body in bodies:
            producer.send(topic, body)
    consumer = node.simple_consumer(group, topic)
    received = consumer.take(len(bodies))
    consumer.ack(*received)
    assert sorted((message.body[0], len(message.body)) for message in received) == [
        (body[0], len(body)) for body in bodies
    ]
    assert gateway.lag(group, topic) == 0
