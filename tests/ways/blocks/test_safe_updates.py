"""Servers that refuse a DELETE or UPDATE whose key they do not see (sql_safe_updates): all of it is cleaned up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from client_core.ids import new_id
from consumer_sdk import Consumer
from consumer_sdk.applied import AppliedMessages, AppliedSettings, by_property
from producer_sdk import Message, Producer, TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.fence.rows import COMMITTED
from producer_sdk.outbox import Outbox, OutboxState, RelaySettings, relay
from ways.outbox.fakes import FakeTarget
from ways.outbox.running import relaying, until
from ways.shops import ORDER, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker


@pytest.fixture
def safe(shop: Shop) -> Iterator[sa.Engine]:
    """An engine whose sessions are set so."""
    if shop.kind not in {"mariadb", "mysql"}:
        pytest.skip("a setting of MySQL and MariaDB")
    engine = sa.create_engine(shop.url, connect_args={"init_command": "SET SESSION sql_safe_updates = 1"})
    yield engine
    engine.dispose()


def test_rows_of_a_fence(shop: Shop, safe: sa.Engine, broker: EmbeddedBroker, topic: str) -> None:
    fence = TransactionFence(safe)
    fence.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer:
        for number in range(3):
            with Session(safe) as session, producer.transaction(session) as tx:
                session.execute(ORDER, {"content": f"lamp {number}"})
                tx.send(topic, "lamp")
        until(lambda: shop.fences() == {})
    done = [new_id() for _ in range(120)]
    with fence._database.transaction() as local:
        for each in done:
            local.execute(fence.rows._insert, id=each, state=COMMITTED)
    with fence._database.transaction() as local:
        assert fence.rows.delete(local, done) == 120


def test_messages_of_an_outbox(shop: Shop, safe: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_CLEAN_EVERY", "_CLEAN_ALL_EVERY"):
        monkeypatch.setattr(relay, name, 0.1)
    settings = RelaySettings(poll=0.05, first_backoff=0.05, decide_every=0.05, keep=0.2, keep_rolled_back=0.2)
    outbox = Outbox(safe, settings=settings)
    outbox.create_tables()
    with Session(safe) as session:
        outbox.put_many(session, [Message("orders", f"{number}") for number in range(20)])
        outbox.put(session, Message("orders", "wrong"))
        session.commit()
    # As a relay left it that died while it sent the first rows.
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE halfmq_outbox_relay SET sending_from = 1, sending_to = 3, sending_since = 0")
    target = FakeTarget()
    target.refused = {"wrong"}
    with relaying(outbox, target):
        errors = OutboxState.MESSAGE_ERROR
        until(lambda: outbox.status().counts == {errors: 4})
        failed = [each.id for each in outbox.errors()]
        assert outbox.skip(failed[3:]) == 1
        assert outbox.retry(failed[:3], possibly_twice=True) == 3
        assert outbox.cancel(outbox.announce(Message("orders", "never")))
        announced = outbox.announce(Message("orders", "announced"))
        with Session(safe) as session:
            outbox.confirm(session, announced)
            session.commit()
        until(lambda: outbox.status().counts == {})
    assert sorted(target.texts) == sorted([*map(str, range(20)), "announced"])


def test_marks_of_applied_messages(shop: Shop, safe: sa.Engine, broker: EmbeddedBroker, topic: str) -> None:
    settings = AppliedSettings(keep=0)
    group = f"accounts-{time.monotonic_ns()}"
    applied = AppliedMessages(safe, group, key=by_property("order"), settings=settings)
    applied.create_tables()
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, each, properties={"order": each}) for each in "abc"])
    with Consumer(broker.endpoint, group, topic) as consumer:
        count = 0
        while count < 3:
            messages = consumer.receive(3, timeout=20)
            for message in messages:
                applied.handler(lambda message, connection: connection.execute(ORDER, {"content": message.text}))(
                    message
                )
            consumer.ack(messages)
            count += len(messages)
        assert applied.clean(consumer) == 3
    assert shop.orders() == ["a", "b", "c"]
