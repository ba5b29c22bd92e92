"""Python on pages that is no program of its own: each block runs by itself, with the names that its page speaks of."""

from __future__ import annotations

import ast
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from consumer_sdk import Consumer, QueueReader
from consumer_sdk.applied import AppliedMessages, by_message_id
from producer_sdk import (
    Admin,
    Compression,
    Connection,
    LocalTransactionState,
    Message,
    Producer,
    RetryConfig,
    TlsConfig,
    TransactionListener,
    TransactionProducer,
)
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import Outbox
from producer_sdk.testing import embedded_broker
from support.certificates import Authority
from support.listings import listing_with

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, as the pages have it."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]

    def to_json(self) -> str:
        return f'{{"item": "{self.item}"}}'


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(["orders"]) as made:
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def run(page: str, first: str, names: dict[str, Any]) -> dict[str, Any]:
    listing = listing_with(page, first)
    exec(compile(listing.text, str(listing), "exec"), names)
    return names


def texts(broker: EmbeddedBroker, topic: str, count: int) -> list[str]:
    """As many messages of a topic, in any order."""
    with Consumer(broker.endpoint, f"reader-{time.monotonic_ns()}", topic, start="earliest") as consumer:
        found: list[str] = []
        while len(found) < count:
            messages = consumer.receive(count, timeout=30)
            assert messages, found
            for message in messages:
                found.append(message.text)
                message.ack()
        return sorted(found)


def test_three_ways_to_receive(broker: EmbeddedBroker) -> None:
    """A statement each; those that go on until they are stopped are stopped when all is handled."""
    listing = listing_with("docs/sdk.md", "for message in consumer")
    handled: list[str] = []
    for number, statement in enumerate(ast.parse(listing.text).body):
        with Producer(broker.endpoint) as producer:
            producer.send("orders", f"order {number}")
        with Consumer(broker.endpoint, "shipping", "orders", start="earliest") as consumer:
            stopper = threading.Thread(target=stop_when_done, args=(broker, consumer, number + 1))
            names: dict[str, Any] = {"consumer": consumer, "handler": lambda message: handled.append(message.text)}
            if not isinstance(statement, ast.Assign):
                stopper.start()
            exec(compile(ast.Module([statement], []), str(listing), "exec"), names)
            for message in names.get("messages", []):
                message.ack()
            if stopper.ident:
                stopper.join()
    assert handled == ["order 2"]


def stop_when_done(broker: EmbeddedBroker, consumer: Consumer, count: int) -> None:
    deadline = time.monotonic() + 30
    with QueueReader(broker.endpoint) as reader:
        while time.monotonic() < deadline:
            if sum(each.committed_offset for each in reader.queue_offsets("orders", "shipping")) >= count:
                break
            time.sleep(0.02)
    consumer.stop()


def test_one_connection_for_all_clients(tmp_path: Path, engine: sa.Engine) -> None:
    """It is made without a broker: nothing is connected before the first call."""
    names: dict[str, Any] = {
        each.__name__: each for each in (Admin, Connection, Consumer, RetryConfig, TlsConfig, TransactionProducer)
    }
    names |= {"certificate": Authority.make().pem, "fence": TransactionFence(engine)}
    run("docs/sdk.md", "connection = Connection", names)
    assert isinstance(names["connection"], Connection)
    for client in ("producer", "consumer", "admin"):
        names[client].close()


def test_a_broker_for_tests(engine: sa.Engine) -> None:
    names: dict[str, Any] = {"embedded_broker": embedded_broker, "TransactionProducer": TransactionProducer}
    run("docs/sdk.md", "with embedded_broker", names | {"fence": TransactionFence(engine)})


def test_topics_that_are_compressed(broker: EmbeddedBroker) -> None:
    with Admin(broker.endpoint) as admin:
        admin.delete_topic("orders")
        admin.create_topic("invoices")
        run("docs/how-to/topics-and-retention.md", "admin.create_topic", {"admin": admin, "Compression": Compression})
        assert {topic.compression for topic in admin.list_topics() if topic.name in {"orders", "invoices"}} == {
            Compression.ZSTD
        }


def test_applied_and_sent_in_one_transaction(broker: EmbeddedBroker, engine: sa.Engine) -> None:
    applied, outbox = AppliedMessages(engine, "shipping", key=by_message_id), Outbox(engine)
    applied.create_tables()
    outbox.create_tables()
    with Producer(broker.endpoint) as producer, Consumer(broker.endpoint, "billing", "paid") as consumer:
        producer.send("paid", "7")
        (message,) = consumer.receive(timeout=30)
        with TransactionProducer(broker.endpoint, "shop", outbox):
            for _ in range(2):
                with Session(engine) as session:
                    names = {"applied": applied, "session": session, "message": message, "outbox": outbox}
                    names |= {"order": Order(item="lamp"), "Message": Message}
                    run("docs/ways/README.md", "with applied.once", names)
            assert texts(broker, "orders", 1) == ['{"item": "lamp"}']
    with Session(engine) as session:
        assert session.scalars(sa.select(Order.item)).all() == ["lamp"]


class Framework:
    """What a web framework is here: it calls a function with what its dependency yields."""

    def __init__(self) -> None:
        self.views: dict[str, Any] = {}

    def post(self, path: str) -> Any:
        return lambda view: self.views.setdefault(path, view)


def test_a_session_that_a_web_framework_hands_in(broker: EmbeddedBroker, engine: sa.Engine) -> None:
    app, fence = Framework(), TransactionFence(engine)
    fence.create_tables()
    with TransactionProducer(broker.endpoint, "shop", fence) as producer:
        names: dict[str, Any] = {"sessionmaker": sessionmaker, "engine": engine, "app": app, "producer": producer}
        names |= {"Annotated": Annotated, "Session": Session, "Depends": lambda function: function, "Order": Order}
        run("docs/ways/fence.md", "maker = sessionmaker", names)
        opened = names["database"]()
        session = next(opened)
        assert app.views["/orders/{item}"]("lamp", session) == {"id": 1, "item": "lamp"}
        opened.close()
        assert texts(broker, "orders", 1) == ["1 lamp"]


def test_an_own_listener(broker: EmbeddedBroker, engine: sa.Engine) -> None:
    note = sa.table("note", sa.column("id"), sa.column("status"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE note (id VARCHAR(36) PRIMARY KEY, status VARCHAR(20))")
    names: dict[str, Any] = {
        "TransactionListener": TransactionListener,
        "LocalTransactionState": LocalTransactionState,
        "TransactionProducer": lambda _, *rest: TransactionProducer(broker.endpoint, *rest),
        "Message": Message,
        "order": "three apples",
        "database": engine,
        "NOTE": sa.insert(note),
        "ORDER": sa.text("INSERT INTO shop_order (item) VALUES (:order)"),
        "execute": lambda order, transaction_id: LocalTransactionState.COMMIT,
        "outcome": lambda transaction_id: LocalTransactionState.COMMIT,
    }
    run("docs/ways/own-listener.md", "class Orders", names)
    run("docs/ways/own-listener.md", "with producer.transaction", names)
    names["producer"].close()
    assert texts(broker, "orders", 2) == ["three apples"] * 2
    with Session(engine) as session:
        assert session.scalars(sa.select(Order.item)).all() == ["three apples"]


def test_bridges_are_made_with_these_arguments() -> None:
    """All but `run()`, which needs Kafka: nothing is connected before it."""
    listing = listing_with("docs/ways/kafka.md", "from halfmq_connect.kafka")
    ran = "bridge.run()"
    assert listing.text.count(ran) == 1
    names: dict[str, Any] = {}
    exec(compile(listing.text.replace(ran, "ran = bridge.run"), str(listing), "exec"), names)
    assert callable(names["ran"])
    assert callable(names["source"].run)
    assert callable(names["bridge"].stop)
