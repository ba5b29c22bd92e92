from __future__ import annotations

from typing import TYPE_CHECKING

from consumer_sdk import Consumer
from producer_sdk import TransactionProducer, TransactionState
from producer_sdk.testing import embedded_broker, halfmq_broker

if TYPE_CHECKING:
    from pathlib import Path

    from broker.app import EmbeddedBroker

__all__ = ["halfmq_broker"]


def test_the_embedded_broker_has_what_was_named_and_keeps_its_data(tmp_path: Path) -> None:
    for run in range(2):  # the second time everything exists already
        with (
            embedded_broker(["orders"], ["g"], data_dir=tmp_path, auto_create=False) as broker,
            TransactionProducer(broker.endpoint, "p") as producer,
            Consumer(broker.endpoint, "g", "orders") as consumer,
        ):
            with producer.transaction() as tx:
                tx.send("orders", f"run {run}")
            (message,) = consumer.receive(1, timeout=30)
            assert (message.text, message.transaction_id) == (f"run {run}", tx.transaction_id)
            message.ack()


def test_the_fixture_creates_topics_as_they_are_used(halfmq_broker: EmbeddedBroker) -> None:
    with TransactionProducer(halfmq_broker.endpoint, "p") as producer:
        with producer.transaction() as tx:
            tx.send("new", "x")
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
