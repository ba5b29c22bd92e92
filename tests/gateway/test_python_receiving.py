"""Official simple consumers: receiving, acknowledging, keeping messages, and filters of either kind of consumer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from producer_sdk import SqlFilter, TagFilter
from support.rocketmq import ClientError, await_handled, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient


def test_a_consumer_waits_for_the_first_message_and_gets_none_after_its_time(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    consumer = python.simple_consumer(broker.endpoint, group, topic, wait=2)
    began = time.monotonic()
    assert consumer.receive() == []
    assert time.monotonic() - began >= 1.9
    producer = python.producer(broker.endpoint, topic)
    patient = python.simple_consumer(broker.endpoint, group, topic, wait=60)
    sending = threading.Timer(0.5, producer.send, [topic, "at last"])
    sending.start()
    assert texts(patient.receive()) == ["at last"]
    assert time.monotonic() - began < 40
    sending.join()


def test_a_consumer_gets_as_many_messages_as_it_asks_for(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    python.producer(broker.endpoint, topic).send_many(topic, [f"{number}" for number in range(40)])
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    some = consumer.receive(3)
    assert len(some) == 3
    found = {*texts(some)}
    while len(found) < 40:
        found.update(texts(consumer.receive(100)))
    assert found == {f"{number}" for number in range(40)}


def test_an_acknowledged_message_does_not_come_again_and_another_one_does_after_its_time(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    producer = python.producer(broker.endpoint, topic)
    producer.send_many(topic, ["acknowledged", "forgotten"])
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    began = time.monotonic()
    by_body = {}
    while len(by_body) < 2:
        by_body.update({message.text: message for message in consumer.receive(invisible=3)})
    assert {message.attempt for message in by_body.values()} == {1}
    consumer.ack(by_body["acknowledged"])
    (again,) = consumer.receive()
    assert time.monotonic() - began >= 2.9
    assert (again.text, again.attempt) == ("forgotten", 2)
    assert again.message_id == by_body["forgotten"].message_id
    assert again.receipt_handle != by_body["forgotten"].receipt_handle
    # Who was late is told so, and has no effect.
    with pytest.raises(ClientError) as late:
        consumer.ack(by_body["forgotten"])
    assert (late.value.kind, late.value.code) == ("BadRequestException", "INVALID_RECEIPT_HANDLE")
    consumer.ack(again)
    consumer.ack(again)  # The answer to the first may have been lost.
    await_handled(admin, group, topic)


def test_a_message_whose_invisible_time_is_changed_has_a_new_handle_that_counts(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    python.producer(broker.endpoint, topic).send(topic, "slow work")
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    began = time.monotonic()
    (message,) = consumer.receive(invisible=2)
    handle = consumer.change_invisible_duration(message, 4)
    assert handle != message.receipt_handle
    # It would have come again by now.
    (again,) = consumer.receive()
    assert time.monotonic() - began >= 3.9
    assert (again.text, again.attempt) == ("slow work", 2)
    newest = consumer.change_invisible_duration(again, 600)
    for old in (message.receipt_handle, handle, again.receipt_handle):
        with pytest.raises(ClientError) as refused:
            consumer.ack(message, old or "")
        assert refused.value.code == "INVALID_RECEIPT_HANDLE"
        with pytest.raises(ClientError) as refused:
            consumer.change_invisible_duration(message, 1, old or "")
        assert refused.value.code == "INVALID_RECEIPT_HANDLE"
    consumer.ack(message, newest)
    await_handled(admin, group, topic)


def test_a_message_is_given_back_by_an_invisible_time_of_nothing(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    python.producer(broker.endpoint, topic).send_many(topic, ["one", "two"])
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    began = time.monotonic()
    first = {}
    while len(first) < 2:
        first.update({message.text: message for message in consumer.receive(invisible=600)})
    consumer.change_invisible_duration(first["two"], 0)
    (again,) = consumer.receive()
    assert (again.text, again.attempt) == ("two", 2)
    assert time.monotonic() - began < 300
    consumer.ack(first["one"])
    consumer.ack(again)


def test_a_consumer_that_goes_away_leaves_what_it_did_not_acknowledge(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    python.producer(broker.endpoint, topic).send(topic, "left behind")
    leaving = python.simple_consumer(broker.endpoint, group, topic)
    (left,) = leaving.receive(invisible=2)
    leaving.shutdown()
    (again,) = python.simple_consumer(broker.endpoint, group, topic).receive_all(1)
    assert (again.message_id, again.attempt) == (left.message_id, 2)


def test_an_invisible_time_that_cannot_be_is_refused(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    with pytest.raises(ClientError) as refused:
        consumer.receive(invisible=13 * 3600)
    assert (refused.value.kind, refused.value.code) == ("BadRequestException", "ILLEGAL_INVISIBLE_TIME")
    python.producer(broker.endpoint, topic).send(topic, "order")
    (message,) = consumer.receive()
    with pytest.raises(ClientError) as refused:
        consumer.change_invisible_duration(message, 13 * 3600)
    assert refused.value.code == "ILLEGAL_INVISIBLE_TIME"
    consumer.ack(message)


def test_groups_of_consumers_each_get_all_messages(
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    group: str,
    admin: Admin,
    unique: Callable[[str], str],
) -> None:
    other = admin.create_group(unique("audit")).name
    python.producer(broker.endpoint, topic).send_many(topic, ["one", "two", "three"])
    for each in (group, other):
        consumer = python.simple_consumer(broker.endpoint, each, topic)
        assert sorted(texts(consumer.receive_all(3))) == ["one", "three", "two"]


def test_a_consumer_reads_several_topics(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    second, third = (admin.create_topic(unique("more")).name for _ in range(2))
    producer = python.producer(broker.endpoint)
    consumer = python.simple_consumer(broker.endpoint, group, {topic: "*", second: "*"}, wait=1)
    consumer.subscribe(third)
    for each in (topic, second, third):
        producer.send(each, f"of {each}")
    messages = consumer.receive_all(3)
    assert {(message.topic, message.text) for message in messages} == {
        (each, f"of {each}") for each in (topic, second, third)
    }


# Filters

ORDERS = [
    {"body": "paid 5", "tag": "paid", "properties": {"amount": "5", "country": "CH"}},
    {"body": "paid 50", "tag": "paid", "properties": {"amount": "50", "country": "AT"}},
    {"body": "sent 500", "tag": "sent", "properties": {"amount": "500", "country": "CH"}},
    {"body": "open", "properties": {"country": "DE"}},
    {"body": "bare"},
]


WANTED = {
    "*": {"paid 5", "paid 50", "sent 500", "open", "bare"},
    "paid": {"paid 5", "paid 50"},
    "paid || sent": {"paid 5", "paid 50", "sent 500"},
    "sql: amount > 10": {"paid 50", "sent 500"},
    "sql: country = 'CH' AND amount BETWEEN 1 AND 100": {"paid 5"},
    "sql: TAGS = 'sent' OR country IS NULL": {"sent 500", "bare"},
    "sql: (TAGS IS NOT NULL AND TAGS IN ('paid')) AND NOT country = 'CH'": {"paid 50"},
    "sql: amount > 10000": set(),
}


@pytest.mark.parametrize("kind_of_consumer", ["simple", "push"])
def test_a_filter_lets_through_what_it_says(
    kind_of_consumer: str,
    broker: BrokerProcess,
    python: OfficialClient,
    topic: str,
    admin: Admin,
    unique: Callable[[str], str],
) -> None:
    groups = {expression: admin.create_group(unique("shop")).name for expression in WANTED}
    producer = python.producer(broker.endpoint, topic)
    for order in ORDERS:
        producer.send(topic, **order)
    found = {}
    if kind_of_consumer == "simple":
        for expression, group in groups.items():
            consumer = python.simple_consumer(broker.endpoint, group, {topic: expression}, wait=1)
            found[expression] = texts(consumer.receive_rest(admin, group, topic))
    else:
        consumers = {
            expression: python.push_consumer(broker.endpoint, group, {topic: expression})
            for expression, group in groups.items()
        }
        for expression, group in groups.items():
            await_handled(admin, group, topic)
            found[expression] = consumers[expression].received.texts()
    assert {expression: sorted(bodies) for expression, bodies in found.items()} == {
        expression: sorted(bodies) for expression, bodies in WANTED.items()
    }


def test_the_filter_of_a_later_consumer_is_the_groups_from_then_on(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    producer = python.producer(broker.endpoint, topic)
    for expression, in_halfmq in (
        ("sent", {topic: TagFilter("sent")}),
        ("sql: amount < 100", {topic: SqlFilter("amount < 100")}),
        ("*", {}),
    ):
        for order in ORDERS:
            producer.send(topic, **order)
        consumer = python.simple_consumer(broker.endpoint, group, {topic: expression}, wait=1)
        wanted = {"sent": {"sent 500"}, "sql: amount < 100": {"paid 5", "paid 50"}, **WANTED}[expression]
        assert set(texts(consumer.receive_rest(admin, group, topic))) == wanted
        assert admin.get_group(group).filters == in_halfmq


def test_a_consumer_that_goes_on_with_an_old_filter_does_not_bring_it_back(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    producer = python.producer(broker.endpoint, topic)
    old = python.push_consumer(broker.endpoint, group, {topic: "paid"})
    producer.send(topic, "paid 0", tag="paid")
    old.received.await_text("paid 0")
    new = python.push_consumer(broker.endpoint, group, {topic: "sent"})
    until = time.monotonic() + 60
    while admin.get_group(group).filters != {topic: TagFilter("sent")}:
        assert time.monotonic() < until
        time.sleep(0.05)
    # Each message ends a poll, and the next one names the filter again.
    for number in range(20):
        producer.send(topic, f"paid {number + 1}", tag="paid")
        producer.send(topic, f"sent {number}", tag="sent")
        await_handled(admin, group, topic)
    assert admin.get_group(group).filters == {topic: TagFilter("sent")}
    assert old.received.texts()[0] == "paid 0"
    assert sorted(old.received.texts()[1:] + new.received.texts()) == sorted(f"sent {number}" for number in range(20))
    assert len(old.received.all()) > 1


@pytest.mark.parametrize("expression", ["sql: amount >", "sql: ", "sql: unknown_function(amount) = 1"])
def test_a_filter_that_cannot_be_read_is_refused(
    expression: str, broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    consumer = python.simple_consumer(broker.endpoint, group, {topic: expression})
    with pytest.raises(ClientError, match="filter_expression") as refused:
        consumer.receive()
    assert (refused.value.kind, refused.value.code) == ("BadRequestException", "ILLEGAL_FILTER_EXPRESSION")
