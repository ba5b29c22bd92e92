"""The block of docs/sdk.md while the shop's own connection to its database breaks: order and messages, or neither.

The listing runs as it stands, on MariaDB and MySQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import OperationalError

from consumer_sdk import Consumer
from faults.mysql_proxy import Action, Late, MySqlProxy, When
from producer_sdk import TransactionProducer, TransactionState
from producer_sdk.testing import embedded_broker
from support.databases import connect, create_database, drop_database, server_url
from support.sdk_page import PAGE, ROOT, block_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from support.databases import Kind

LISTING = compile(block_with("producer.transaction(session)"), str(PAGE), "exec")


@pytest.fixture(scope="module")
def shop(kind: Kind) -> Iterator[str]:
    """A database of the application's own."""
    url = create_database(server_url(kind))
    yield url
    drop_database(url)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.syspath_prepend(ROOT / "examples" / "ways")
    with embedded_broker(topics=["orders", "payments"], groups=["all"], first_check=60) as made:
        yield made


def run(broker: EmbeddedBroker, url: str) -> None:
    names: dict[str, Any] = {"endpoint": broker.endpoint, "url": url}
    exec(LISTING, names)


def orders(shop: str) -> int:
    with connect(shop) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM orders")
        return int(cursor.fetchone()[0])


def received(broker: EmbeddedBroker) -> list[str]:
    found = []
    with Consumer(broker.endpoint, "all", ["orders", "payments"]) as consumer:
        while messages := consumer.receive(10, timeout=1.0):
            found += [message.text for message in messages]
            consumer.ack(messages)
    return sorted(found)


def test_it_stores_the_order_and_sends_both_messages(shop: str, broker: EmbeddedBroker) -> None:
    before = orders(shop) if _has_tables(shop) else 0
    run(broker, shop)
    assert (orders(shop) - before, received(broker)) == (1, ["invoice 7", "three apples"])


@pytest.mark.parametrize(
    ("when", "action", "happened"),
    [("before", "cut", False), ("after", "cut", True), ("before", Late(1.0), True)],
    ids=["before", "after", "late"],
)
def test_its_connection_breaks_at_the_commit(
    shop: str, broker: EmbeddedBroker, when: When, action: Action, happened: bool
) -> None:
    before = orders(shop) if _has_tables(shop) else 0
    with MySqlProxy.to(shop) as proxy:
        rule = proxy.on_commit(matching="INSERT INTO orders", when=when, action=action)
        with pytest.raises(OperationalError):
            run(broker, proxy.url(shop))
        assert rule.fired == 1
        # It was decided at the end of the block, without waiting for a check of the broker.
        messages = ["invoice 7", "three apples"] if happened else []
        assert (orders(shop) - before, received(broker)) == (int(happened), messages)


def test_an_exception_comes_after_the_commit(shop: str, broker: EmbeddedBroker) -> None:
    names: dict[str, Any] = {"endpoint": broker.endpoint, "url": shop}
    run(broker, shop)
    received(broker)
    before = orders(shop)
    exec(compile("from own_listener import NOTE, Orders\norders = Orders(url)", "", "exec"), names)
    listener = names["orders"]
    with (
        TransactionProducer(broker.endpoint, "shop", listener) as producer,
        pytest.raises(KeyError),
        producer.transaction() as tx,
    ):
        tx.send("orders", "a pear")
        with listener.shop.begin() as database:
            database.execute(names["NOTE"], {"id": tx.transaction_id, "status": "done"})
            database.exec_driver_sql("INSERT INTO orders (content) VALUES ('a pear')")
        raise KeyError
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    assert (orders(shop) - before, received(broker)) == (1, ["a pear"])


def _has_tables(shop: str) -> bool:
    with connect(shop) as connection, connection.cursor() as cursor:
        return bool(cursor.execute("SHOW TABLES LIKE 'orders'"))
