"""RocketMQ's push consumer for Node: handlers that succeed, fail, take long; message groups; dead letters; its end."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import ExhaustedPolicy
from producer_sdk import Message
from producer_sdk import Producer as NativeProducer
from support.gateways import Gateway, eventually, texts
from support.node import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from support.node import Happening, PushConsumer


def fill(gateway: Gateway, topic: str, bodies: Iterable[str], message_group: str | None = None) -> None:
    with NativeProducer(gateway.endpoint) as producer:
        producer.send_many([Message(topic, body, message_group=message_group) for body in bodies])


def attempts(consumer: PushConsumer) -> dict[str, list[int | None]]:
    """The numbers of the deliveries of each body."""
    found = defaultdict(list)
    for message in consumer.messages:
        found[message.text].append(message.attempt)
    return dict(found)


def handled(consumer: PushConsumer) -> list[tuple[str, Happening]]:
    """What was delivered and handled, in its order, with the body."""
    bodies = {message.token: message.text for message in consumer.messages}
    return [(bodies[each.token], each) for each in consumer.process.happenings(consumer.name)]


def test_every_message_comes_once(gateway: Gateway, node: NodeProcess) -> None:
    topics, group = [gateway.topic(queues=4), gateway.topic(queues=1), gateway.topic(queues=2)], gateway.group()
    for topic in topics:
        fill(gateway, topic, (f"{topic} {number}" for number in range(40)))
    consumer = node.push_consumer(group, *topics)
    consumer.until(120)
    gateway.until_settled(group, *topics)
    assert sorted(texts(consumer.messages)) == sorted(f"{topic} {number}" for topic in topics for number in range(40))


def test_failures_come_again_after_the_delays_of_the_group_and_end_as_dead_letters(
    gateway: Gateway, node: NodeProcess
) -> None:
    topic, group = gateway.topic(), gateway.group(retry_delays=[0.5, 1], max_attempts=3)
    outcomes = {
        "fails": ["failure", "failure", "success"],
        "raises": ["throw", "success"],
        "poison": ["failure"],
        "raises always": ["throw"],
    }
    fill(gateway, topic, ["good", *outcomes])
    consumer = node.push_consumer(group, topic, outcomes=outcomes)
    consumer.until(1 + 3 + 2 + 3 + 3)
    gateway.until_settled(group, topic)
    assert attempts(consumer) == {
        "good": [1],
        "fails": [1, 2, 3],
        "raises": [1, 2],
        "poison": [1, 2, 3],
        "raises always": [1, 2, 3],
    }
    assert gateway.dead_letters(group) == ["poison", "raises always"]
    # The client takes the delays that it is told for milliseconds, and asks for those.
    for body in outcomes:
        story = [each for its_body, each in handled(consumer) if its_body == body]
        given_back = [each.at for each in story if each.event == "handled"]
        came_again = [each.at for each in story if each.event == "delivered"][1:]
        waited = [again - back for back, again in zip(given_back, came_again, strict=False)]
        assert len(waited) == len(attempts(consumer)[body]) - 1
        assert all(found > wanted for found, wanted in zip(waited, [0.45, 0.95], strict=False)), (body, waited)
    letters = {letter.message.text: letter for letter in gateway.admin.list_dead_letters(group)}
    assert (letters["poison"].attempts, letters["poison"].origin.topic) == (3, topic)


def test_dead_letters_are_messages_like_others(gateway: Gateway, node: NodeProcess) -> None:
    topic, group, readers = gateway.topic(), gateway.group(max_attempts=1), gateway.group()
    consumer = node.push_consumer(group, topic, outcomes={"poison": ["failure", "success"]})
    sent = node.producer(topic).send(topic, "poison", tag="t", keys=["k"], properties={"a": "b"})
    eventually(lambda: gateway.dead_letters(group), lambda letters: letters == ["poison"])
    (letter,) = node.push_consumer(readers, f"%DLQ%{group}").until(1)
    assert (letter.text, letter.tag, letter.keys, letter.properties["a"]) == ("poison", "t", ("k",), "b")
    assert letter.message_id == sent.message_id
    # The operator sends it to the group again.
    assert sum(progress.redriven for progress in gateway.admin.redrive(group)) == 1
    assert texts(consumer.until(2)) == ["poison", "poison"]
    assert gateway.dead_letters(group) == ["poison"]


def test_a_group_that_never_gives_up_goes_on(gateway: Gateway, node: NodeProcess) -> None:
    topic = gateway.topic()
    group = gateway.group(retry_delays=[0.01], max_attempts=2, when_exhausted=ExhaustedPolicy.RETRY)
    fill(gateway, topic, ["stubborn"])
    consumer = node.push_consumer(group, topic, outcomes={"stubborn": ["failure"] * 5 + ["success"]})
    consumer.until(6)
    gateway.until_settled(group, topic)
    assert attempts(consumer) == {"stubborn": [1, 2, 3, 4, 5, 6]}
    assert gateway.dead_letters(group) == []


GROUPS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("fifo", "accelerated"), [(False, False), (True, False), (True, True)], ids=["plain", "fifo", "accelerated"]
)
def test_message_groups_are_handled_in_order(
    gateway: Gateway, node: NodeProcess, fifo: bool, accelerated: bool
) -> None:
    topic, group = gateway.topic(queues=2), gateway.group(fifo=fifo, retry_delays=[0.3], max_attempts=3)
    for number in range(8):
        for name in GROUPS:
            fill(gateway, topic, [f"{name}{number}"], message_group=name)
    outcomes = {"a3": ["failure", "throw", "success"], "b1": ["failure"], "c7": ["failure"]}
    consumer = node.push_consumer(group, topic, outcomes=outcomes, work=0.01, enableFifoConsumeAccelerator=accelerated)
    consumer.until(3 * 8 + 2 + 2 + 2)
    gateway.until_settled(group, topic)
    tries = attempts(consumer)
    assert tries == {
        f"{name}{number}": [1, 2, 3] if f"{name}{number}" in outcomes else [1] for name in GROUPS for number in range(8)
    }
    story = handled(consumer)
    for name in GROUPS:
        # Each is handled before the next one comes, and again and again before the next one comes.
        wanted = [
            (f"{name}{number}", event)
            for number in range(8)
            for _ in tries[f"{name}{number}"]
            for event in ("delivered", "handled")
        ]
        assert [(body, each.event) for body, each in story if body.startswith(name)] == wanted
    assert gateway.dead_letters(group) == ["b1", "c7"]


def test_message_groups_are_shared_by_consumers_and_keep_their_order(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(queues=4), gateway.group(fifo=True)
    consumers = [node.push_consumer(group, topic, work=0.002) for _ in range(2)]
    names = [f"customer-{number}" for number in range(8)]
    producer = node.producer(topic)
    for number in range(20):
        for name in names:
            producer.send(topic, f"{name} {number}", message_group=name)
    node.until(lambda: sum(len(consumer.happenings("handled")) for consumer in consumers) >= 160)
    gateway.until_settled(group, topic)
    arrived = sorted((each for consumer in consumers for each in consumer.deliveries), key=lambda each: each.token)
    messages = [each.message for each in arrived if each.message is not None]
    for name in names:
        own = [message.text for message in messages if message.message_group == name]
        assert own == [f"{name} {number}" for number in range(20)]


def test_what_a_handler_takes_long_for_is_not_given_to_another(tmp_path: Path) -> None:
    with (
        Gateway(f"sqlite:///{tmp_path / 'halfmq.db'}", lease=2) as gateway,
        NodeProcess(gateway.endpoint) as node,
    ):
        topic, group = gateway.topic(), gateway.group(retry_delays=[0.1])
        consumers = [node.push_consumer(group, topic, usual="hold") for _ in range(2)]
        fill(gateway, topic, ["1", "2", "3"])

        def delivered() -> list[str]:
            return [message.text for consumer in consumers for message in consumer.messages]

        node.until(lambda: len(delivered()) == 3)
        # By the broker's clock: longer than a delivery would belong to its consumer.
        clock = gateway.topic()
        node.producer(clock).send(clock, "later", delay=3200)
        node.simple_consumer(gateway.group(), clock).take(1)
        assert sorted(delivered()) == ["1", "2", "3"]
        for consumer in consumers:
            for message in consumer.messages:
                consumer.release(message, "failure" if message.text == "2" else "success")
        # It was kept for its consumer, and then given back by it.
        node.until(lambda: len(delivered()) == 4)
        (again,) = [
            (consumer, message) for consumer in consumers for message in consumer.messages if message.attempt == 2
        ]
        assert again[1].text == "2"
        again[0].release(again[1], "success")
        gateway.until_settled(group, topic)


def test_thousands_of_messages_come_once_to_two_processes(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(queues=4), gateway.group()
    bodies = [f"order-{number}" for number in range(2000)]
    with NodeProcess(gateway.endpoint) as other:
        consumers = [process.push_consumer(group, topic) for process in (node, other)]
        receipts = node.producer(topic).send_many(topic, bodies, together=100)
        assert len({receipt.message_id for receipt in receipts}) == 2000
        eventually(
            lambda: sum(len(consumer.happenings("handled")) for consumer in consumers), lambda count: count >= 2000
        )
        gateway.until_settled(group, topic)
        shares = [texts(consumer.messages) for consumer in consumers]
        assert Counter(shares[0] + shares[1]) == Counter(bodies)
        assert all(shares)


def test_a_consumer_that_is_shut_down_settles_what_it_has(gateway: Gateway, node: NodeProcess) -> None:
    topic, group = gateway.topic(), gateway.group(retry_delays=[0.05])
    leaving = node.push_consumer(group, topic, outcomes={"held": ["hold"], "given back": ["hold"]})
    fill(gateway, topic, ["held", "given back"])
    node.until(lambda: len(leaving.deliveries) == 2)
    ending = leaving.begin("shutdown")
    # It takes what its last call brings, and makes no other one.
    fill(gateway, topic, ["last"])
    leaving.until(1)
    for message in leaving.messages:
        if message.text != "last":
            leaving.release(message, "success" if message.text == "held" else "failure")
    ending.result()
    assert sorted(texts(leaving.messages)) == ["given back", "held", "last"]
    fill(gateway, topic, ["next"])
    following = node.push_consumer(group, topic)
    following.until(2)
    gateway.until_settled(group, topic)
    assert attempts(following) == {"given back": [2], "next": [1]}


def test_a_message_that_the_client_cannot_take_in_does_not_keep_others_from_it(
    gateway: Gateway, node: NodeProcess
) -> None:
    # The client sends 4 MiB, and takes in no more than that with all that belongs to the message.
    large, topic, grouped = bytes(4 * 1024 * 1024), gateway.topic(queues=1), gateway.topic(queues=1)
    groups = [gateway.group(retry_delays=[0.2], max_attempts=2, fifo=fifo) for fifo in (False, True, False, True)]
    producer = node.producer(topic, grouped)
    for body in (b"first", large, b"last"):
        producer.send(topic, body)
        producer.send(grouped, body, message_group="a")
    consumers = [node.push_consumer(group, topic, grouped) for group in groups[:2]]
    simple = node.simple_consumer(groups[2], topic, wait=0.3)
    simple.ack(*simple.take(2))
    assert simple.receive() == []
    for group, consumer in zip(groups, consumers, strict=False):
        gateway.until_settled(group, topic, grouped)
        assert attempts(consumer) == {"first": [1, 1], "last": [1, 1]}
        assert [message.text for message in consumer.messages if message.message_group] == ["first", "last"]
    gateway.until_settled(groups[2], topic)
    for group, count in zip(groups, (2, 2, 1), strict=False):
        letters = list(gateway.admin.list_dead_letters(group))
        assert [len(letter.message.body) for letter in letters] == [len(large)] * count
        assert all("larger than its consumer can take in" in letter.reason for letter in letters)
    # Where it is the first of its message group, the others wait for it as for a handler that fails.
    head = gateway.topic()
    producer.send(head, large, message_group="a")
    producer.send(head, b"last", message_group="a")
    consumer = node.push_consumer(groups[3], head)
    assert texts(consumer.until(1)) == ["last"]
    (letter,) = gateway.admin.list_dead_letters(groups[3])
    assert letter.attempts == 2
