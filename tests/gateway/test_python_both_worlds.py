"""Official clients and halfmq's own SDK and operators on the same topics, groups and transactions."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk import Consumer
from halfmq.v1 import transaction_pb2
from producer_sdk import (
    HalfMessages,
    LocalTransactionState,
    Message,
    Producer,
    TimelineEventType,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)
from support.operators import COMMIT, COMMITTED, PREPARED, ROLLBACK, ROLLED_BACK, Operator
from support.rocketmq import ClientError, await_handled, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin
    from support.brokers import BrokerProcess
    from support.rocketmq import OfficialClient

BODY = bytes(range(256)) + "grüezi 你好".encode()
PROPERTIES = {"country": "CH", "note": "schön, 好"}


def own_id(message_id: str) -> str:
    """halfmq's name of a message that an official client named."""
    return str(uuid.UUID(message_id[2:]))


class Always(TransactionListener):
    """Leaves transactions open, and says the same to all checks."""

    def __init__(self, verdict: LocalTransactionState) -> None:
        self._verdict = verdict
        self.checks: list[HalfMessages] = []

    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        self.checks.append(messages)
        return self._verdict


def test_what_an_official_client_sends_has_the_same_content_for_halfmqs_consumer(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str
) -> None:
    producer = python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    sent = {
        "plain": producer.send(topic, b"plain").message_id,
        "full": producer.send(topic, BODY, tag="paid", keys=["7", "8"], properties=PROPERTIES).message_id,
        "grouped": producer.send(topic, b"grouped", message_group="alice").message_id,
        "delayed": producer.send(topic, b"delayed", deliver_at=int(time.time()) + 1).message_id,
    }
    transaction = producer.send_in_transaction(topic, b"in transaction", tag="paid")
    transaction.commit()
    with Consumer(broker.endpoint, group, topic) as consumer:
        found = {}
        while len(found) < 5:
            for message in consumer.receive(10, timeout=30):
                found[message.message_id] = message
                message.ack()
    full = found[own_id(sent["full"])]
    assert (full.body, full.tag, set(full.keys), full.attempt) == (BODY, "paid", {"7", "8"}, 1)
    assert {name: value for name, value in full.properties.items() if not name.startswith("halfmq.")} == PROPERTIES
    assert full.properties["halfmq.born-host"]
    plain = found[own_id(sent["plain"])]
    assert (plain.body, plain.tag, plain.keys, plain.message_group) == (b"plain", None, (), None)
    assert found[own_id(sent["grouped"])].message_group == "alice"
    assert found[own_id(sent["delayed"])].deliver_at is not None
    in_transaction = found[transaction.transaction_id]
    assert in_transaction.message_id == own_id(transaction.message_id)
    assert (in_transaction.body, in_transaction.tag) == (b"in transaction", "paid")


def test_what_halfmqs_producer_sends_has_the_same_content_for_official_consumers(
    broker: BrokerProcess, python: OfficialClient, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    topic = admin.create_topic(unique("orders"), priority_levels=2).name
    deliver_at = datetime.fromtimestamp(int(time.time()) + 1, UTC)
    with Producer(broker.endpoint) as producer:
        places = producer.send_many(
            [
                Message(topic, "plain"),
                Message(topic, BODY, tag="paid", keys=["7", "8"], properties=PROPERTIES),
                Message(topic, "grouped", message_group="alice"),
                Message(topic, "delayed", deliver_at=deliver_at),
                Message(topic, "urgent", priority=1),
            ]
        )
    ids = [f"01{uuid.UUID(place.message_id).hex.upper()}" for place in places]
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    plain, full, grouped, delayed, urgent = sorted(consumer.receive_all(5), key=lambda each: ids.index(each.message_id))
    assert [each.message_id for each in (plain, full, grouped, delayed, urgent)] == ids
    assert (plain.text, plain.tag, plain.keys, plain.properties) == ("plain", None, frozenset(), {})
    assert plain.message_type == "NORMAL"
    assert (full.body, full.tag, full.keys, full.properties) == (BODY, "paid", {"7", "8"}, PROPERTIES)
    assert (grouped.text, grouped.message_group, grouped.message_type) == ("grouped", "alice", "FIFO")
    assert (delayed.text, delayed.message_type) == ("delayed", "DELAY")
    assert delayed.deliver_at == deliver_at.timestamp() * 1000
    assert (urgent.text, urgent.priority, urgent.message_type) == ("urgent", 1, "PRIORITY")
    assert not any(each.corrupted for each in (plain, full, grouped, delayed, urgent))
    assert 0 < time.time() - plain.born_at / 1000 < 300


def test_a_transaction_of_several_messages_by_halfmqs_producer_arrives_whole_or_not_at_all(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    with TransactionProducer(broker.endpoint, unique("till"), Always(LocalTransactionState.UNKNOWN)) as producer:
        dropped, committed = (
            producer.prepare([Message(topic, f"{kind} {number}") for number in range(3)]).transaction_id
            for kind in ("dropped", "committed")
        )
        producer.rollback(dropped)
        producer.commit(committed)
    consumer.received.await_count(3)
    await_handled(admin, group, topic)
    messages = sorted(consumer.received.all(), key=lambda message: message.text)
    assert texts(messages) == [f"committed {number}" for number in range(3)]
    name = f"01{uuid.UUID(committed).hex.upper()}"
    assert [message.message_id for message in messages] == [name, f"{name}.1", f"{name}.2"]
    assert [admin.get_message(message.message_id).message.text for message in messages] == texts(messages)


def test_a_dead_letter_of_halfmqs_consumer_is_read_by_an_official_one(
    broker: BrokerProcess, python: OfficialClient, topic: str, admin: Admin, unique: Callable[[str], str]
) -> None:
    group = admin.create_group(unique("shop"), max_attempts=1).name
    python.producer(broker.endpoint, topic).send(topic, "not for this shop", keys=["7"], tag="paid")
    with Consumer(broker.endpoint, group, topic) as consumer:
        (message,) = consumer.receive(timeout=30)
        assert message.nack(reason="sold out") is not None
    undertaker = admin.create_group(unique("undertaker")).name
    (letter,) = python.simple_consumer(broker.endpoint, undertaker, f"%DLQ%{group}").receive_all(1)
    assert (letter.text, letter.keys, letter.tag) == ("not for this shop", {"7"}, "paid")
    assert letter.properties["halfmq.reason"] == "sold out"
    assert letter.properties["halfmq.origin-topic"] == topic


def test_consumers_of_both_worlds_share_a_group(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    sent = [f"order {number}" for number in range(200)]
    official = python.push_consumer(broker.endpoint, group, topic)
    with Consumer(broker.endpoint, group, topic, prefetch=1) as consumer:
        consumer.start()
        consumer.wait_until_subscribed(30)
        python.producer(broker.endpoint, topic).send_many(topic, sent)
        own = []
        official.received.await_count(1)
        while not own or len(own) + len(official.received.all()) < 200:
            for message in consumer.receive(10, timeout=0.2):
                own.append(message.text)
                message.ack()
        await_handled(admin, group, topic)
    assert sorted(own + official.received.texts()) == sorted(sent)


def test_halfmq_finds_a_message_by_rocketmqs_id_and_by_its_key_and_tells_its_story(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, admin: Admin
) -> None:
    producer = python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    receipt = producer.send(topic, "order", keys=["7"])
    consumer = python.simple_consumer(broker.endpoint, group, topic)
    consumer.receive_all(1)
    for message_id in (receipt.message_id, receipt.message_id.lower(), own_id(receipt.message_id)):
        found = admin.get_message(message_id)
        assert (found.state, found.message.text) == (TransactionState.COMMITTED, "order")
        assert found.message.message_id == own_id(receipt.message_id)
    assert [message.text for message in admin.find_messages(topic, key="7")] == ["order"]
    story = admin.timeline(receipt.message_id)
    assert [(event.type, event.client_id) for event in story[-2:]] == [
        (TimelineEventType.DELIVERED, consumer.client_id),
        (TimelineEventType.ACKED, consumer.client_id),
    ]
    half = producer.send_in_transaction(topic, "half")
    waiting = admin.get_message(half.message_id)
    assert (waiting.state, waiting.message, waiting.waiting.text) == (TransactionState.PREPARED, None, "half")
    delayed = producer.send(topic, "delayed", deliver_at=int(time.time()) + 600)
    assert admin.get_message(delayed.recall_handle).scheduled_at - datetime.now(UTC) > timedelta(seconds=500)
    producer.recall(topic, delayed.recall_handle)
    assert admin.get_message(delayed.message_id).recalled_at is not None


def test_an_operator_sees_and_decides_what_an_official_producer_left_open(
    broker: BrokerProcess, python: OfficialClient, topic: str, group: str, operator: Operator
) -> None:
    consumer = python.push_consumer(broker.endpoint, group, topic)
    producer = python.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN")
    kept, dropped = (producer.send_in_transaction(topic, body, keys=["7"]) for body in ("kept", "dropped"))
    operator.wait(kept.transaction_id, lambda found: found.check_count > 1)
    listed = operator.undecided(topic)
    assert [each.transaction_id for each in listed] == [kept.transaction_id, dropped.transaction_id]
    assert {(each.state, each.producer_group, each.half_count) for each in listed} == {(PREPARED, topic, 1)}
    (half,) = operator.transaction(kept.transaction_id).halves
    assert (half.topic, half.body, list(half.keys)) == (topic, b"kept", ["7"])
    operator.resolve(kept.transaction_id, COMMIT)
    operator.resolve(dropped.transaction_id, ROLLBACK)
    assert consumer.received.await_text("kept").message_id == kept.message_id
    assert operator.undecided(topic) == []
    for transaction, state, action in ((kept, COMMITTED, "COMMIT"), (dropped, ROLLED_BACK, "ROLLBACK")):
        found = operator.transaction(transaction.transaction_id)
        assert found.state == state
        assert found.op.source == transaction_pb2.VERDICT_SOURCE_OPERATOR
        assert [(each.action, each.operator, each.reason) for each in found.operator_actions] == [
            (action, "anna", "the order was paid")
        ]
        assert {check.client_id for check in found.checks} == {producer.client_id}
    # The producer comes too late.
    kept.commit()
    with pytest.raises(ClientError, match="COMMITTED"):
        kept.rollback()
    assert consumer.received.texts() == ["kept"]


def test_producers_of_both_worlds_answer_for_each_other_where_their_group_has_the_name_of_the_topic(
    broker: BrokerProcess, python: OfficialClient, new_python: Callable[..., OfficialClient], topic: str, group: str
) -> None:
    dying = new_python()
    left = dying.producer(broker.endpoint, topic, checker=lambda _: "UNKNOWN").send_in_transaction(topic, "official")
    dying.kill()
    listener = Always(LocalTransactionState.COMMIT)
    consumer = python.push_consumer(broker.endpoint, group, topic)
    with TransactionProducer(broker.endpoint, topic, listener) as producer:
        producer.start()
        assert consumer.received.await_text("official").message_id == left.message_id
        assert {check.transaction_id for check in listener.checks} == {left.transaction_id}
    with TransactionProducer(broker.endpoint, topic, None) as producer:
        own = producer.prepare(Message(topic, "native")).transaction_id
    official = python.producer(broker.endpoint, topic, checker=lambda _: "COMMIT")
    consumer.received.await_text("native")
    assert official.checks.all()[-1].transaction_id == own
