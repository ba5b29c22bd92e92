"""PostgreSQL's answer to COMMIT is lost, at each moment: order and message, or neither. Other servers: tests/faults."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from producer_sdk import TransactionProducer
from producer_sdk.fence import TransactionFence
from support.postgresql_proxy import PostgresqlProxy, When
from ways.outbox.running import until
from ways.shops import ORDER, Shop, texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize(("when", "happened"), [("before", False), ("after", True), ("late", True)])
def test_a_block(shop: Shop, broker: EmbeddedBroker, topic: str, when: When, happened: bool) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    with (
        PostgresqlProxy(shop.url) as proxy,
        TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer,
    ):
        engine = sa.create_engine(proxy.url)
        with producer.transaction(engine) as tx:
            tx.connection.execute(ORDER, {"content": "chair"})
            tx.send(topic, "chair")
        with (
            pytest.raises(OperationalError),
            Session(engine) as session,
            producer.transaction(session) as lost,
        ):
            session.execute(ORDER, {"content": "lamp"})
            lost.send(topic, "lamp")
            proxy.when = when
        assert proxy.fired.wait(30)
        engine.dispose()
        # The block, or a check, has asked the fence.
        until(lambda: producer.get_transaction(lost.transaction_id).state.name != "PREPARED")
    expected = ["chair", "lamp"] if happened else ["chair"]
    assert shop.orders() == expected
    assert texts(broker.endpoint, topic) == expected
