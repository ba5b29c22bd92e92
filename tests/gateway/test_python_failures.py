"""Brokers that stop, die and come back under official clients: nothing that was acknowledged is lost."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from producer_sdk import Admin, TimelineEventType
from support.operators import Operator
from support.rocketmq import ClientError, await_handled

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient, OfficialProducer, Received, Verdict


class Load:
    """Sends one message after the other until it is ended; a context manager that ends it."""

    def __init__(self, producer: OfficialProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._ended = threading.Event()
        self.acknowledged: list[str] = []
        self.brokers: list[str] = []
        self.failures = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            try:
                receipt = self._producer.send(self._topic, f"order {number}")
            except ClientError:
                self.failures += 1
                time.sleep(0.1)
                continue
            self.acknowledged.append(f"order {number}")
            self.brokers.append(receipt.broker)

    def await_more(self, count: int) -> None:
        """Waits until so many more messages were acknowledged."""
        wanted, until = len(self.acknowledged) + count, time.monotonic() + 60
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < until, f"{self.failures} failures"
            time.sleep(0.01)

    def end(self) -> None:
        """Stops sending."""
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def until_served(action: Callable[[], Any]) -> Any:
    """Does something as soon as the client has found the broker again."""
    until = time.monotonic() + 60
    while True:
        try:
            return action()
        except ClientError as error:
            assert error.code == "UNAVAILABLE"
            assert time.monotonic() < until
            time.sleep(0.1)


def came_back(new_broker: Callable[..., BrokerProcess], broker: BrokerProcess, **settings: object) -> BrokerProcess:
    """A broker on the same port and database."""
    return new_broker(broker.database, listen=broker.endpoint, **settings)


@pytest.mark.parametrize(("how", "kind"), [("stopped", "sqlite"), ("killed", "mysql")])
def test_a_producer_and_a_consumer_go_on_when_the_broker_was_started_again(
    how: str,
    kind: str,
    new_broker: Callable[..., BrokerProcess],
    new_python: Callable[..., OfficialClient],
    unique: Callable[[str], str],
) -> None:
    broker = new_broker(kind, lease=3)
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
    python = new_python()
    consumer = python.push_consumer(broker.endpoint, group, topic)
    with Load(python.producer(broker.endpoint, topic), topic) as load:
        load.await_more(100)
        consumer.received.await_count(50)
        (broker.stop if how == "stopped" else broker.kill)()
        broker = came_back(new_broker, broker, lease=3)
        load.await_more(100)
    with Admin(broker.endpoint) as admin:
        await_handled(admin, group, topic)
        stored = sum(each.max_offset for each in admin.group_progress(group, topic))
    received = consumer.received.all()
    assert set(load.acknowledged) <= {message.text for message in received}
    # Of those that were not, one may have been taken in without an answer; and none was taken in twice.
    assert len(load.acknowledged) <= stored <= len(load.acknowledged) + load.failures
    assert stored == len({message.message_id for message in received}) == len({message.text for message in received})
    # Only what was not acknowledged when the broker went came twice, and it says so.
    firsts = [message.text for message in received if message.attempt == 1]
    assert len(firsts) == len(set(firsts))


def test_a_failure_counts_as_one_though_the_broker_was_started_again_since_the_consumer_came(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite")
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group, max_attempts=3, retry_delays=[1])
    consumer = python.push_consumer(broker.endpoint, group, topic, lambda message: message.text != "bad")
    producer = python.producer(broker.endpoint, topic)
    producer.send(topic, "before")
    consumer.received.await_text("before")
    broker.stop()
    broker = came_back(new_broker, broker)
    bad = until_served(lambda: producer.send(topic, "bad"))
    with Admin(broker.endpoint) as admin:
        await_handled(admin, group, topic)
        attempts = [message.attempt for message in consumer.received.all() if message.text == "bad"]
        assert attempts == [1, 2, 3]
        (letter,) = admin.list_dead_letters(group)
        assert (letter.message.text, letter.attempts) == ("bad", 3)
        story = [event.type for event in admin.timeline(bad.message_id)]
    assert story[-6:] == [
        TimelineEventType.DELIVERED,
        TimelineEventType.NACKED,
        TimelineEventType.DELIVERED,
        TimelineEventType.NACKED,
        TimelineEventType.DELIVERED,
        TimelineEventType.DEAD_LETTERED,
    ]


def test_transactions_outlive_the_broker_that_they_began_at(
    new_broker: Callable[..., BrokerProcess], python: OfficialClient, unique: Callable[[str], str]
) -> None:
    broker = new_broker("sqlite")
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
    producer = python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    committed, repeated, dropped, left = (
        producer.send_in_transaction(topic, body) for body in ("committed", "repeated", "dropped", "left open")
    )
    repeated.commit()
    broker.kill()
    broker = came_back(new_broker, broker)
    for verdict in (committed.commit, repeated.commit, dropped.rollback):
        until_served(verdict)
    successor = python.producer(broker.endpoint, topic, checker=lambda _: "COMMIT")
    consumer = python.push_consumer(broker.endpoint, group, topic)
    with Operator(broker.endpoint) as operator, Admin(broker.endpoint) as admin:
        operator.await_undecided(topic, 0)
        await_handled(admin, group, topic)
    assert sorted(consumer.received.texts()) == ["committed", "left open", "repeated"]
    assert successor.checks.all()[-1].transaction_id == left.transaction_id


def test_what_the_local_transactions_say_is_what_arrives_though_the_broker_is_killed_again_and_again(
    new_broker: Callable[..., BrokerProcess], new_python: Callable[..., OfficialClient], unique: Callable[[str], str]
) -> None:
    broker = new_broker("mysql", lease=3, max_checks=1000)
    topic, group = unique("orders"), unique("shop")
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
    books: set[str] = set()  # What was committed here; the broker's word comes later, or never.

    def checker(message: Received) -> Verdict:
        return "COMMIT" if message.text in books else "ROLLBACK"

    python = new_python()
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    failed = {"send": 0, "end": 0}
    ended = threading.Event()

    def sell() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            try:
                transaction = producer.send_in_transaction(topic, f"order {number}")
            except ClientError:
                failed["send"] += 1  # There may be a half message all the same.
                time.sleep(0.05)
                continue
            if number % 3:
                books.add(f"order {number}")
            try:
                if number % 5:  # Some never get to the end.
                    (transaction.commit if number % 3 else transaction.rollback)()
            except ClientError:
                failed["end"] += 1

    selling = threading.Thread(target=sell)
    selling.start()
    try:
        for _ in range(3):
            sold = len(books) + 40
            until = time.monotonic() + 60
            while len(books) < sold:
                assert time.monotonic() < until
                time.sleep(0.01)
            broker.kill()
            broker = came_back(new_broker, broker, lease=3, max_checks=1000)
    finally:
        ended.set()
        selling.join()
    python.producer(broker.endpoint, topic, checker=checker)
    with Operator(broker.endpoint) as operator, Admin(broker.endpoint) as admin:
        operator.await_undecided(topic, 0)
        await_handled(admin, group, topic)
        stored = sum(each.max_offset for each in admin.group_progress(group, topic))
    assert failed["send"] + failed["end"] > 0
    assert {message.text for message in consumer.received.all()} == books
    assert stored == len(books)


# Several brokers


def two_brokers(
    new_broker: Callable[..., BrokerProcess], kind: str, *, announced: bool
) -> tuple[BrokerProcess, BrokerProcess]:
    """Two on one database; `announced`: each tells clients of both, whichever they ask."""
    settings: dict[str, object] = {"lease": 3}
    if not announced:
        one = new_broker(kind, broker_id="one", **settings)
        return one, new_broker(one.database, broker_id="other", **settings)
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
    settings["rocketmq_endpoints"] = ",".join(addresses)
    one = new_broker(kind, broker_id="one", listen=addresses[0], **settings)
    return one, new_broker(one.database, broker_id="other", listen=addresses[1], **settings)


@pytest.mark.parametrize(("how", "announced"), [("killed", True), ("stopped", False)])
def test_clients_use_both_brokers_and_go_on_with_one_when_the_other_is_gone(
    how: str,
    announced: bool,
    new_broker: Callable[..., BrokerProcess],
    new_python: Callable[..., OfficialClient],
    unique: Callable[[str], str],
) -> None:
    one, other = two_brokers(new_broker, "mariadb", announced=announced)
    endpoints = f"{one.endpoint};{other.endpoint}"
    topic, group = unique("orders"), unique("shop")
    with Admin(other.endpoint) as admin:
        admin.create_topic(topic)
        admin.create_group(group)
        consumers = [new_python().push_consumer(endpoints, group, topic) for _ in range(2)]
        with Load(new_python().producer(endpoints, topic), topic) as load:
            load.await_more(100)
            assert set(load.brokers) == {one.endpoint, other.endpoint}
            for consumer in consumers if announced else ():
                consumer.received.await_count(20)
            (one.kill if how == "killed" else one.stop)()
            load.await_more(100)
        await_handled(admin, group, topic)
        stored = sum(each.max_offset for each in admin.group_progress(group, topic))
    received = [message for consumer in consumers for message in consumer.received.all()]
    if announced:
        # Without that a push consumer is told of the broker only that it happens to ask, every few seconds.
        assert {message.broker for message in received} == {one.endpoint, other.endpoint}
    assert load.failures == 0  # The client tries the other broker by itself.
    assert {message.text for message in received} == set(load.acknowledged)
    assert stored == len(load.acknowledged) == len(set(load.acknowledged))
    firsts = [message.text for message in received if message.attempt == 1]
    assert len(firsts) == len(set(firsts))


def test_the_other_broker_asks_about_transactions_of_one_that_was_killed(
    new_broker: Callable[..., BrokerProcess], new_python: Callable[..., OfficialClient], unique: Callable[[str], str]
) -> None:
    one, other = two_brokers(new_broker, "mysql", announced=True)
    topic, group = unique("orders"), unique("shop")
    verdict: list[Verdict] = ["UNKNOWN"]
    with Admin(other.endpoint) as admin, Operator(other.endpoint) as operator:
        admin.create_topic(topic)
        admin.create_group(group)
        python = new_python()
        consumer = python.push_consumer(one.endpoint, group, topic)
        producer = python.producer(one.endpoint, topic, checker=lambda _: verdict[0])
        producer.send(topic, "before")
        consumer.received.await_text("before")  # From now on it knows both brokers.
        transactions = [producer.send_in_transaction(topic, f"order {number}") for number in range(8)]
        assert {transaction.receipt.broker for transaction in transactions} == {one.endpoint, other.endpoint}
        one.kill()
        verdict[0] = "COMMIT"
        operator.await_undecided(topic, 0)
        await_handled(admin, group, topic)
        assert set(consumer.received.texts()) == {"before", *(f"order {number}" for number in range(8))}
        for transaction in transactions:
            check = operator.transaction(transaction.transaction_id).checks[-1]
            assert (check.client_id, check.broker_id) == (producer.client_id, "other")
