"""Message groups with official clients: what is sent in an order is handled in this order, failures or not.

The official push consumer keeps the order itself where its group is `fifo`: it gets the messages of a message group in
batches, and tries each of them again in place. Where the group is not, it handles all that it gets at the same time; so
the broker hands out the next message of a message group only when the one before is settled.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin
from support.rocketmq import await_handled, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient, Received

GROUPS = ["alice", "bob", "carol", "dave", "eve"]


class Ledger:
    """A listener that notes what is begun and what is done, by message group, and fails now and then."""

    def __init__(self, *, fails: Callable[[Received, int], bool] = lambda message, tries: False) -> None:
        self._fails = fails
        self._lock = threading.Lock()
        self.at_work: set[str] = set()
        self.overlaps: list[str] = []
        self.tries: Counter[str] = Counter()
        self.done: dict[str, list[str]] = defaultdict(list)

    def __call__(self, message: Received) -> bool:
        group = message.message_group or ""
        with self._lock:
            if group in self.at_work:
                self.overlaps.append(message.text)
            self.at_work.add(group)
            self.tries[message.text] += 1
            failing = self._fails(message, self.tries[message.text])
        time.sleep(0.002)
        with self._lock:
            if not failing:
                self.done[group].append(message.text)
            self.at_work.discard(group)
        return not failing


def send_in_groups(python: OfficialClient, endpoint: str, topic: str, count: int) -> dict[str, list[str]]:
    """Sends messages of all groups in turn; the bodies by message group."""
    producer = python.producer(endpoint, topic)
    sent: dict[str, list[str]] = defaultdict(list)
    for number in range(count):
        for group in GROUPS:
            body = f"{group} {number}"
            producer.send(topic, body, message_group=group)
            sent[group].append(body)
    return sent


@pytest.mark.parametrize("fifo", [True, False], ids=["kept by the client", "kept by the broker"])
def test_messages_of_a_group_are_handled_in_order_by_consumers_in_two_processes_though_some_fail(
    fifo: bool,
    broker: BrokerProcess,
    python: OfficialClient,
    new_python: Callable[..., OfficialClient],
    topic: str,
    admin: Admin,
    unique: Callable[[str], str],
) -> None:
    group = admin.create_group(unique("shop"), fifo=fifo, retry_delays=[timedelta(seconds=1)]).name
    # Every tenth message of a group fails the first time.
    ledger = Ledger(fails=lambda message, tries: message.text.endswith("0") and tries == 1)
    python.push_consumer(broker.endpoint, group, topic, ledger)
    new_python().push_consumer(broker.endpoint, group, topic, ledger)
    sent = send_in_groups(python, broker.endpoint, topic, 20)
    await_handled(admin, group, topic)
    assert ledger.done == sent
    assert ledger.overlaps == []
    assert {body: count for body, count in ledger.tries.items() if count > 1} == {
        f"{name} {number}": 2 for name in GROUPS for number in (0, 10)
    }


def test_nobody_else_gets_the_messages_of_a_group_while_the_client_tries_one_again_for_longer_than_the_lease(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite", lease=3)
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group, fifo=True, retry_delays=[timedelta(seconds=2)])
        ledger = Ledger(fails=lambda message, tries: message.text == "bob 1" and tries < 4)
        sent = send_in_groups(python, broker.endpoint, topic, 3)
        consumers = [python.push_consumer(broker.endpoint, group, topic, ledger) for _ in range(2)]
        await_handled(admin, group, topic)
    assert ledger.done == sent
    assert ledger.overlaps == []
    assert ledger.tries == Counter({body: 1 for bodies in sent.values() for body in bodies}) | Counter({"bob 1": 4})
    received = [message for consumer in consumers for message in consumer.received.all()]
    assert {message.attempt for message in received} == {1}


@pytest.mark.parametrize("fifo", [True, False], ids=["kept by the client", "kept by the broker"])
def test_a_message_that_fails_for_good_is_put_aside_and_its_group_goes_on(
    fifo: bool,
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    admin: Admin,
    unique: Callable[[str], str],
) -> None:
    group = admin.create_group(unique("shop"), fifo=fifo, max_attempts=2, retry_delays=[timedelta(seconds=1)]).name
    ledger = Ledger(fails=lambda message, tries: message.text in {"alice 1", "eve 2"})
    sent = send_in_groups(python, broker.endpoint, topic, 4)
    python.push_consumer(broker.endpoint, group, topic, ledger)
    await_handled(admin, group, topic)
    assert ledger.done == {
        name: [body for body in bodies if body not in {"alice 1", "eve 2"}] for name, bodies in sent.items()
    }
    assert ledger.overlaps == []
    assert (ledger.tries["alice 1"], ledger.tries["eve 2"]) == (2, 2)
    letters = python.simple_consumer(broker.endpoint, admin.create_group(unique("undertaker")).name, f"%DLQ%{group}")
    dead = letters.receive_all(2)
    assert sorted(texts(dead)) == ["alice 1", "eve 2"]


def test_a_message_that_comes_again_says_which_attempt_it_is(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    group = admin.create_group(unique("shop"), retry_delays=[timedelta(seconds=1)]).name
    consumer = python.push_consumer(broker.endpoint, group, topic, lambda message: message.attempt == 3)
    sent = python.producer(broker.endpoint, topic).send(topic, "order", message_group="alice")
    await_handled(admin, group, topic)
    received = consumer.received.all()
    assert [message.attempt for message in received] == [1, 2, 3]
    assert {(message.message_id, message.message_group, message.message_type) for message in received} == {
        (sent.message_id, "alice", "FIFO")
    }


def test_a_simple_consumer_gets_the_next_message_of_a_group_when_the_one_before_is_acknowledged(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint, topic)
    for number in range(3):
        producer.send(topic, f"{number}", message_group="alice")
    consumer = python.simple_consumer(broker.endpoint, group, topic, wait=1)
    for number in range(3):
        (message,) = consumer.receive()
        assert message.text == f"{number}"
        assert consumer.receive() == []
        consumer.ack(message)


def test_messages_without_a_group_do_not_wait_for_those_of_one(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    blocked = threading.Event()
    consumer = python.push_consumer(
        broker.endpoint, group, topic, lambda message: message.text != "first" or blocked.wait(60)
    )
    producer = python.producer(broker.endpoint, topic)
    producer.send(topic, "first", message_group="alice")
    consumer.received.await_text("first")
    producer.send(topic, "second", message_group="alice")
    producer.send_many(topic, [f"loose {number}" for number in range(20)])
    consumer.received.await_count(21)
    assert "second" not in consumer.received.texts()
    blocked.set()
    await_handled(admin, group, topic)
    assert consumer.received.texts()[-1] == "second"
