"""The outbox on Django's connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from producer_sdk import ConfigurationError, Message, TransactionProducer, TransactionState
from producer_sdk.outbox import Outbox
from ways.outbox.conftest import QUICK
from ways.outbox.running import until
from ways.shops import texts, write_by_django

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture
def box(alias: str) -> Outbox:
    from django.db import connections

    made = Outbox(connections[alias], settings=QUICK)
    made.create_tables()
    return made


@pytest.fixture
def producer(broker: EmbeddedBroker, box: Outbox) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", box) as made:
        yield made


def agree(shop: Shop, box: Outbox, broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    until(lambda: not box.status().counts)
    assert shop.orders() == texts(broker.endpoint, topic) == expected


def test_blocks_and_puts_go_with_their_transaction(
    shop: Shop, alias: str, box: Outbox, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections, transaction

    with producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "a block")
        tx.send(topic, "a block")
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    with transaction.atomic(using=alias):
        write_by_django(alias, "put")
        box.put(connections[alias], Message(topic, "put"))
    with pytest.raises(KeyError), transaction.atomic(using=alias):
        write_by_django(alias, "yacht")
        box.put(connections[alias], Message(topic, "yacht"))
        raise KeyError
    with pytest.raises(ConfigurationError, match="atomic"):
        box.put(connections[alias], Message(topic, "alone"))
    agree(shop, box, broker, topic, ["a block", "put"])


@pytest.mark.parametrize("commits", [True, False])
def test_inside_of_an_atomic_block_its_end_decides(
    shop: Shop,
    alias: str,
    box: Outbox,
    producer: TransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
    *,
    commits: bool,
) -> None:
    """As with ATOMIC_REQUESTS: the response decides."""
    from django.db import connections, transaction

    with transaction.atomic(using=alias):
        with producer.transaction(connections[alias]) as tx:
            write_by_django(alias, "lamp")
            tx.send(topic, "lamp")
        assert tx.result is None
        if not commits:
            transaction.set_rollback(True, using=alias)
    assert (tx.result is not None) is commits
    agree(shop, box, broker, topic, ["lamp"] if commits else [])


def test_what_django_marks_for_rollback_is_rolled_back(
    shop: Shop, alias: str, box: Outbox, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections, transaction

    with producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "lamp")
        tx.send(topic, "lamp")
        transaction.set_rollback(True, using=alias)
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    agree(shop, box, broker, topic, [])


def test_the_listeners_form_is_refused_inside_of_atomic(alias: str, producer: TransactionProducer) -> None:
    from django.db import transaction

    with transaction.atomic(using=alias):
        sent = producer.send_in_transaction(Message("orders", "lamp"), arg=lambda _: pytest.fail("it was called"))
    assert isinstance(sent.local_error, ConfigurationError)
    assert "outside of atomic" in str(sent.local_error)
    assert sent.state is TransactionState.ROLLED_BACK
