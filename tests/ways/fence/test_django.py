"""The block on Django's connections: an atomic block of its own, or part of one around it."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from producer_sdk import TransactionProducer, TransactionState
from producer_sdk.fence import TransactionFence
from support.listings import listing_with
from ways.shops import texts, write_by_django

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture
def fence(alias: str) -> TransactionFence:
    from django.db import connections

    made = TransactionFence(connections[alias])
    made.create_tables()
    return made


@pytest.fixture
def producer(broker: EmbeddedBroker, fence: TransactionFence) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


def test_its_end_commits_both_or_neither(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections

    with producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "lamp")
        tx.send(topic, "lamp")
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    with pytest.raises(KeyError), producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "yacht")
        tx.send(topic, "yacht")
        raise KeyError
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    assert shop.orders() == texts(broker.endpoint, topic) == ["lamp"]


def test_what_django_marks_for_rollback_is_rolled_back(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections, transaction

    with producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "lamp")
        tx.send(topic, "lamp")
        transaction.set_rollback(True, using=alias)
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    assert shop.orders() == texts(broker.endpoint, topic) == []


@pytest.mark.parametrize("commits", [True, False])
def test_inside_of_an_atomic_block_its_end_decides(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, *, commits: bool
) -> None:
    """As with ATOMIC_REQUESTS: the response decides."""
    from django.db import connections, transaction

    with contextlib.suppress(KeyError), transaction.atomic(using=alias):
        with producer.transaction(connections[alias]) as tx:
            write_by_django(alias, "lamp")
            tx.send(topic, "lamp")
        assert tx.result is None
        if not commits:
            raise KeyError
    if commits:
        assert tx.result is not None
    deadline = time.monotonic() + 30
    wanted = TransactionState.COMMITTED if commits else TransactionState.ROLLED_BACK
    # After a rollback the broker asks, and the fence answers.
    while producer.get_transaction(tx.transaction_id).state is not wanted:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert shop.orders() == texts(broker.endpoint, topic) == (["lamp"] if commits else [])


def test_an_error_that_is_caught_does_not_hide_that_the_server_gave_up(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import DatabaseError, connections

    write_by_django(alias, "lamp")
    with contextlib.suppress(DatabaseError), producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "chair")
        tx.send(topic, "chair")
        with contextlib.suppress(DatabaseError):
            write_by_django(alias, "lamp")
    # PostgreSQL undoes all of it; elsewhere the statement alone failed.
    rest = [] if shop.kind == "postgresql" else ["chair"]
    assert (shop.orders(), texts(broker.endpoint, topic)) == ([*rest, "lamp"], rest)


def test_views_in_many_threads(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections

    def view(number: int) -> None:
        try:
            for each in range(5):
                with producer.transaction(connections[alias]) as tx:
                    tx.send(topic, f"{number}-{each}")
                    write_by_django(alias, f"{number}-{each}")
        finally:
            connections[alias].close()

    threads = [threading.Thread(target=view, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shop.orders() == texts(broker.endpoint, topic)
    assert len(shop.orders()) == 20


def test_the_view_on_the_page_runs(shop: Shop, alias: str, broker: EmbeddedBroker, topic: str) -> None:
    """With a model whose rows are orders, and a fence whose table there is."""
    from django.db import connections

    TransactionFence(connections[alias]).create_tables()
    listing = listing_with("docs/ways/fence.md", "from django.db import connection")
    text = listing.text.replace("from django.db import connection\n", "").replace('"orders"', "topic")
    made = SimpleNamespace(create=lambda item: write_by_django(alias, item) or SimpleNamespace(to_json=lambda: item))
    names: dict[str, Any] = {
        "connection": connections[alias],
        "TransactionFence": TransactionFence,
        "TransactionProducer": lambda _, *rest: TransactionProducer(broker.endpoint, *rest),
        "Order": SimpleNamespace(objects=made),
        "topic": topic,
    }
    exec(compile(text, str(listing), "exec"), names)
    with names["producer"]:
        names["place"](SimpleNamespace(POST={"item": "lamp"}))
    assert shop.orders() == texts(broker.endpoint, topic) == ["lamp"]
