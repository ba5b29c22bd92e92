"""Official push consumers: retries, dead letters, long work, and consumers that go away."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from broker.embedded import EmbeddedBroker
from broker.rocketmq import clients
from producer_sdk import Admin, Message, Producer
from support.rocketmq import await_handled, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient, Received


def test_a_message_that_fails_comes_again_after_the_delays_of_its_group(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    delays = [timedelta(seconds=2), timedelta(seconds=1)]
    group = admin.create_group(unique("shop"), retry_delays=delays).name
    consumer = python.push_consumer(
        broker.endpoint,
        group,
        topic,
        lambda message: message.text == "good" or message.attempt == 4,
    )
    sent = python.producer(broker.endpoint, topic).send(topic, "bad", keys=["7"], properties={"a": "b"})
    python.producer(broker.endpoint, topic).send(topic, "good")
    await_handled(admin, group, topic)
    deliveries = [message for message in consumer.received.all() if message.text == "bad"]
    assert [message.attempt for message in deliveries] == [1, 2, 3, 4]
    assert {message.message_id for message in deliveries} == {sent.message_id}
    assert {(message.keys, message.properties["a"]) for message in deliveries} == {(frozenset({"7"}), "b")}
    times = [message.seen_at for message in deliveries]
    # The last delay counts for all that follow.
    for (earlier, later), delay in zip(pairwise(times), (2, 1, 1), strict=True):
        assert delay - 0.1 < later - earlier < delay + 20
    assert consumer.received.texts().count("good") == 1


def test_a_message_that_fails_for_good_is_found_among_the_dead_letters_of_its_group(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    group = admin.create_group(unique("shop"), max_attempts=3, retry_delays=[timedelta(seconds=1)]).name

    def listener(message: Received) -> bool:
        if message.text == "raises":
            raise ValueError("the listener's own")
        return message.text == "good"

    consumer = python.push_consumer(broker.endpoint, group, topic, listener)
    producer = python.producer(broker.endpoint, topic)
    sent = {
        body: producer.send(topic, body, tag="paid", keys=["k"], properties={"n": "1"})
        for body in ("good", "fails", "raises")
    }
    await_handled(admin, group, topic)
    assert Counter(consumer.received.texts()) == {"good": 1, "fails": 3, "raises": 3}
    dead = f"%DLQ%{group}"
    reader = admin.create_group(unique("undertaker")).name
    letters = python.simple_consumer(broker.endpoint, reader, dead).receive_all(2)
    assert sorted(texts(letters)) == ["fails", "raises"]
    assert {letter.text: letter.message_id for letter in letters} == {
        body: sent[body].message_id for body in ("fails", "raises")
    }
    for letter in letters:
        assert (letter.topic, letter.tag, letter.keys, letter.attempt) == (dead, "paid", {"k"}, 1)
        assert letter.properties["n"] == "1"
        assert not letter.corrupted
    listed = {each.message.text: each for each in admin.list_dead_letters(group)}
    assert {body: (each.attempts, each.origin.topic) for body, each in listed.items()} == {
        "fails": (3, topic),
        "raises": (3, topic),
    }
    # Delivered to the group again by an operator, they come to the official consumer once more.
    *_, last = admin.redrive(group)
    assert last.redriven == 2
    consumer.received.wait(lambda messages: texts(messages).count("fails") + texts(messages).count("raises") > 7)
    assert sent["fails"].message_id in {message.message_id for message in consumer.received.all()}


def test_listeners_that_work_for_longer_than_the_lease_get_no_message_twice(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite", lease=3)
    topic, group = unique("orders"), unique("shop")
    begun, done = threading.Semaphore(0), threading.Event()
    # Some are handled at once, and share their leases with others that are not; hundreds have leases of their own.
    messages = [Message(topic, f"{'slow' if number % 3 else 'quick'} {number}") for number in range(100)]
    messages += [Message(topic, f"slow of group {number}", message_group=f"{number}") for number in range(300)]
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.create_topic(topic)
        admin.create_group(group)
        producer.send_many(messages)

        def listener(message: Received) -> bool:
            if message.text.startswith("quick"):
                return True
            begun.release()
            return done.wait(60)

        consumers = [python.push_consumer(broker.endpoint, group, topic, listener) for _ in range(2)]
        for _ in range(20):
            assert begun.acquire(timeout=60)
        # All threads of a consumer are at work now, and what else was handed out waits; for two leases.
        working = threading.Timer(6, done.set)
        working.start()
        await_handled(admin, group, topic)
        working.join()
    received = [message for consumer in consumers for message in consumer.received.all()]
    assert len(received) == len(set(texts(received))) == 400
    assert {message.attempt for message in received} == {1}


def test_the_messages_of_a_push_consumer_that_was_killed_come_again(
    python: OfficialClient,
    new_python: Callable[..., OfficialClient],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "AFTER_STREAM", 4.0)  # In this process, where the broker is.
    topic, group = unique("orders"), unique("shop")
    with EmbeddedBroker(rocketmq=True, lease=3) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
        never = threading.Event()
        dying = new_python()
        held = dying.push_consumer(broker.endpoint, group, topic, lambda _: never.wait(120))
        sent = [f"order {number}" for number in range(10)]
        python.producer(broker.endpoint, topic).send_many(topic, sent)
        held.received.await_count(10)
        killed_at = time.time()
        dying.kill()
        never.set()
        consumer = python.push_consumer(broker.endpoint, group, topic)
        again = consumer.received.await_count(10)
        await_handled(admin, group, topic)
        python.shutdown_all()
    assert sorted(consumer.received.texts()) == sorted(sent)
    for message in again:
        assert (message.attempt or 0) > 1
        assert message.seen_at > killed_at + 3


def test_a_push_consumer_that_is_shut_down_ends_its_work_and_leaves_the_rest_to_the_others(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    sent = [f"order {number}" for number in range(300)]
    handled = []

    def listener(message: Received) -> bool:
        time.sleep(0.02)
        handled.append(message.text)
        return True

    leaving = python.push_consumer(broker.endpoint, group, topic, listener, threads=4)
    python.producer(broker.endpoint, topic).send_many(topic, sent)
    leaving.received.await_count(20)
    leaving.shutdown()
    done_by_the_first = len(handled)
    staying = python.push_consumer(broker.endpoint, group, topic, listener)
    await_handled(admin, group, topic)
    assert sorted(handled) == sorted(sent)
    assert len(staying.received.all()) == 300 - done_by_the_first


def test_push_consumers_read_several_topics(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    second = admin.create_topic(unique("more")).name
    consumer = python.push_consumer(broker.endpoint, group, {topic: "*", second: "wanted"})
    producer = python.producer(broker.endpoint)
    producer.send(topic, "of the first")
    producer.send(second, "of the second", tag="wanted")
    producer.send(second, "not wanted", tag="other")
    for each in (topic, second):
        await_handled(admin, group, each)
    assert {(message.topic, message.text) for message in consumer.received.all()} == {
        (topic, "of the first"),
        (second, "of the second"),
    }
