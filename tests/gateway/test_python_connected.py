"""Operators see which of RocketMQ's clients are connected."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from producer_sdk import Admin, ClientKind, ConnectedClient, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess
    from support.databases import AnyKind
    from support.rocketmq import OfficialClient, Received, Verdict


def until(admin: Admin, enough: Callable[[list[ConnectedClient]], bool], group: str) -> list[ConnectedClient]:
    """Clients of a group, once brokers have reported what is waited for."""
    ends = time.monotonic() + 30
    while not enough(found := list(admin.list_clients(group=group))):
        assert time.monotonic() < ends, found
        time.sleep(0.2)
    return found


def test_its_clients_are_listed_with_their_groups_and_topics(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    python.push_consumer(broker.endpoint, group, topic)
    python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    (reader,) = until(admin, lambda found: len(found) == 1, group)
    assert (reader.kind, reader.groups, reader.topics) == (ClientKind.CONSUMER, (group,), (topic,))
    assert reader.library.startswith("rocketmq-python/")
    assert reader.address.startswith(("127.0.0.1:", "[::1]:"))
    assert reader.credits is None
    # The producers of transactions on a topic are a group with its name.
    (seller,) = until(admin, lambda found: len(found) == 1, topic)
    assert (seller.kind, seller.topics) == (ClientKind.PRODUCER, (topic,))


def test_what_a_consumer_holds_is_told_until_it_is_settled(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    python.producer(broker.endpoint, topic).send_many(topic, [f"{number}" for number in range(5)])
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    got: list[Received] = []
    while len(got) < 5:
        got += consumer.receive(5 - len(got), invisible=600)
    (reader,) = until(admin, lambda found: [each.held for each in found] == [5], group)
    assert (reader.kind, reader.client_id) == (ClientKind.CONSUMER, consumer.client_id)
    # It asks by calls: there are no credits, and nothing is delivered on its stream.
    assert (reader.credits, reader.byte_credits, reader.delivered) == (None, None, 0)
    for message in got[:3]:
        consumer.ack(message)
    assert [each.held for each in admin.list_clients(group=group)] == [2]
    for message in got[3:]:
        consumer.ack(message)
    assert [each.held for each in admin.list_clients(group=group)] == [0]


def test_what_a_producer_is_asked_is_told_until_it_answers(
    new_broker: Callable[..., BrokerProcess], kind: AnyKind, python: OfficialClient, unique: Callable[[str], str]
) -> None:
    may_answer = threading.Event()

    def check(message: Received) -> Verdict:
        may_answer.wait(60)
        return "COMMIT"

    # It is asked once: the next check would be due after the test.
    broker = new_broker(kind, first_check=0.2, check_interval=600)
    with Admin(broker.endpoint) as admin:
        topic = admin.create_topic(unique("orders")).name
        try:
            producer = python.producer(broker.endpoint, topic, checker=check)
            own = producer.send_in_transaction(topic, "in doubt").transaction_id
            (seller,) = until(admin, lambda found: [each.held for each in found] == [1], topic)
            assert (seller.kind, seller.client_id, seller.delivered) == (ClientKind.PRODUCER, producer.client_id, 1)
        finally:
            may_answer.set()
        until(admin, lambda found: [each.held for each in found] == [0], topic)
        assert admin.get_transaction(own).state is TransactionState.COMMITTED
        producer.shutdown()


def test_a_producer_that_only_sends_is_listed_for_it_has_a_stream(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin
) -> None:
    producer = python.producer(broker.endpoint, topic)
    producer.send(topic, "an order")
    (seller,) = until(admin, lambda found: len(found) == 1, topic)
    assert (seller.kind, seller.client_id, seller.held) == (ClientKind.PRODUCER, producer.client_id, 0)
