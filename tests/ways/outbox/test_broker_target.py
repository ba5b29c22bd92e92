"""The relay and real brokers: what they refuse, and which requests a batch becomes."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from producer_sdk import Admin, BrokerUnavailable, Message, TransactionProducer
from producer_sdk.outbox import BrokerTarget, NotTried, Outbox, OutboxState
from support.brokers import BrokerProcess
from ways.outbox.conftest import QUICK
from ways.outbox.running import relaying, until
from ways.shops import texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop

ERROR, COMMIT = OutboxState.MESSAGE_ERROR, OutboxState.LOCAL_COMMIT
TOO_MANY = [f"{number:04}" for number in range(2300)]
"""Bodies of messages whose properties together are too large for one request."""


def put(shop: Shop, outbox: Outbox, *messages: Message) -> None:
    with Session(shop.engine) as session:
        outbox.put_many(session, messages)
        session.commit()


def too_many(topic: str, group: str | None = None) -> list[Message]:
    properties = {"p": "v" * 16_000}
    return [
        Message(topic, text, properties=properties, message_group=group, message_id=str(uuid.uuid4()))
        for text in TOO_MANY
    ]


@pytest.fixture
def target(broker: EmbeddedBroker) -> Iterator[BrokerTarget]:
    made = BrokerTarget(broker.endpoint)
    yield made
    made.close()


def test_brokers_refuse_and_take(
    shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str, target: BrokerTarget
) -> None:
    """By the usual target: an unknown queue priority is refused, and later messages of the group wait."""
    with relaying(outbox, target):
        with Session(shop.engine) as session:
            outbox.put(session, Message(topic, "urgent", priority=7))
            outbox.put_many(session, [Message(topic, f"{number:02}", message_group="g") for number in range(30)])
            session.commit()
        until(lambda: outbox.status().counts == {ERROR: 1})
        assert "priority" in outbox.errors()[0].cause.lower()
    assert texts(broker.endpoint, topic) == [f"{number:02}" for number in range(30)]


def test_behind_an_id_that_was_given_twice_none_of_the_group_is_stored(
    shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str, target: BrokerTarget
) -> None:
    """Not in the same request either: a relay cannot know of it before."""
    used = str(uuid.uuid4())
    first = Message(topic, "x" * 100, message_id=used, message_group="other")
    rest = [Message(topic, f"m{number}", message_group="g") for number in (2, 3)]
    assert target.send([first], lambda: True) == [None]
    with relaying(outbox, target):
        put(
            shop,
            outbox,
            Message(topic, "m0", message_group="g"),
            Message(topic, "m1", message_id=used, message_group="g"),
        )
        put(shop, outbox, *rest, Message(topic, "free"))
        until(lambda: "free" in texts(broker.endpoint, topic))
        until(lambda: outbox.status().counts == {ERROR: 1, COMMIT: 2})
        (error,) = outbox.errors()
        assert "id" in error.cause
        assert sorted(texts(broker.endpoint, topic)) == sorted(["x" * 100, "m0", "free"])
        assert outbox.skip([error.id]) == 1
        until(lambda: COMMIT not in outbox.status().counts)
    assert [each for each in texts(broker.endpoint, topic) if each[0] == "m"] == ["m0", "m2", "m3"]


def test_behind_what_a_broker_with_a_lower_limit_refuses(shop: Shop, outbox: Outbox, tmp_path: Path) -> None:
    """The relay has seen another broker take larger ones."""
    database = f"sqlite:///{tmp_path / 'broker.db'}"
    with BrokerProcess(database) as one:
        endpoint = one.endpoint
        with Admin(endpoint) as admin:
            admin.create_topic("orders", queues=1)
        target = BrokerTarget(endpoint)
        large = Message("orders", "x" * 1000, message_group="other", message_id=str(uuid.uuid4()))
        assert target.send([large], lambda: True) == [None]
    with BrokerProcess(database, listen=endpoint, max_body_bytes=500), relaying(outbox, target):
        put(shop, outbox, Message("orders", "m" * 800, message_group="g"), Message("orders", "m2", message_group="g"))
        until(lambda: outbox.status().counts == {ERROR: 1, COMMIT: 1})
        assert texts(endpoint, "orders") == ["x" * 1000]
    target.close()


def test_messages_that_are_too_large_for_a_request_together_go_apart(
    broker: EmbeddedBroker, topic: str, target: BrokerTarget
) -> None:
    messages = too_many(topic)
    assert target.send(messages, lambda: True) == [None] * len(messages)
    assert texts(broker.endpoint, topic) == TOO_MANY


def test_a_request_is_not_sent_once_the_turn_may_be_anothers(
    broker: EmbeddedBroker, topic: str, target: BrokerTarget
) -> None:
    messages = too_many(topic, "g")
    may = iter([True, True, False])  # All in one request, which is too large; then half of them; then the others.
    outcomes = target.send(messages, lambda: next(may))
    half = len(messages) // 2
    assert outcomes[:half] == [None] * half
    assert {type(each) for each in outcomes[half:]} == {NotTried}
    assert texts(broker.endpoint, topic) == TOO_MANY[:half]
    assert target.send(messages, lambda: True) == [None] * len(messages)
    assert texts(broker.endpoint, topic) == TOO_MANY


def test_a_call_that_is_repeated_asks_whether_it_still_may() -> None:
    target = BrokerTarget("127.0.0.1:1")
    may = iter([True, False])
    (outcome,) = target.send([Message("orders", "a", message_id=str(uuid.uuid4()))], lambda: next(may))
    target.close()
    # It was tried once, so it may have been stored.
    assert isinstance(outcome, BrokerUnavailable)
    assert "lost its turn" in str(outcome)


def test_it_ends_at_once_while_no_broker_can_be_reached(shop: Shop, outbox: Outbox) -> None:
    """Nothing would come of waiting; what is in the table stays there."""
    put(shop, outbox, Message("orders", "a"))
    target = BrokerTarget("127.0.0.1:1")
    relay = outbox.relay(target)
    relay.start()
    until(lambda: target.is_failing)
    began = time.monotonic()
    relay.stop()
    target.close()
    assert time.monotonic() - began < 2.0
    assert outbox.status().counts == {COMMIT: 1}
    assert outbox.status().relay == ""


def test_rows_of_the_same_process_wait_for_no_poll(
    shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    outbox.settings = replace(QUICK, poll=3600.0, lease=3600.0)
    expected: list[str] = []
    with TransactionProducer(broker.endpoint, f"shop-{topic}", outbox) as producer:
        producer.start()
        for number in range(3):
            put(shop, outbox, Message(topic, f"put {number}"))
            expected.append(f"put {number}")
            until(lambda: sorted(texts(broker.endpoint, topic)) == sorted(expected))
            with producer.transaction(shop.engine) as tx:
                tx.send(topic, f"block {number}")
            expected.append(f"block {number}")
            until(lambda: sorted(texts(broker.endpoint, topic)) == sorted(expected))
