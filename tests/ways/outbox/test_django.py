"""The outbox on Django's connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from producer_sdk import ConfigurationError, Message, TransactionProducer, TransactionState
from producer_sdk.outbox import Outbox
from support.databases import in_ci
from ways.outbox.conftest import QUICK
from ways.outbox.running import until
from ways.shops import texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop

ENGINES = {"sqlite": "sqlite3", "mariadb": "mysql", "mysql": "mysql", "postgresql": "postgresql"}


@pytest.fixture
def alias(shop: Shop) -> Iterator[str]:
    """The name of a connection in DATABASES."""
    import django
    from django.conf import settings
    from django.db import connections

    if shop.kind in {"mariadb", "mysql"} and not in_ci():
        pytest.importorskip("MySQLdb", reason="Django works with mysqlclient on MySQL and MariaDB")
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    parts = urlsplit(shop.url)
    name = f"shop{time.monotonic_ns()}"
    entry: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[shop.kind]}", "NAME": parts.path.strip("/")}
    if shop.kind == "sqlite":
        entry["NAME"] = shop.engine.url.database
    else:
        entry |= {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password}
    known = connections.settings
    known[name] = connections.configure_settings({"default": known["default"], name: entry})[name]
    yield name
    connections[name].close()
    del known[name]


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


def write(alias: str, content: str) -> None:
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO orders (content) VALUES (%s)", [content])


def agree(shop: Shop, box: Outbox, broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    until(lambda: not box.status().counts)
    assert shop.orders() == texts(broker.endpoint, topic) == expected


def test_blocks_and_puts_go_with_their_transaction(
    shop: Shop, alias: str, box: Outbox, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    from django.db import connections, transaction

    with producer.transaction(connections[alias]) as tx:
        write(alias, "a block")
        tx.send(topic, "a block")
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    with transaction.atomic(using=alias):
        write(alias, "put")
        box.put(connections[alias], Message(topic, "put"))
    with pytest.raises(KeyError), transaction.atomic(using=alias):
        write(alias, "yacht")
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
            write(alias, "lamp")
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
        write(alias, "lamp")
        tx.send(topic, "lamp")
        transaction.set_rollback(True, using=alias)
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    agree(shop, box, broker, topic, [])
