"""The block of a producer with an outbox: the same calls as with a fence, and the order is there with its message."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from producer_sdk import (
    ClientClosed,
    ConfigurationError,
    LocalTransactionEnded,
    Message,
    RequestRefused,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.outbox import Outbox, OutboxState
from ways.outbox.conftest import QUICK
from ways.outbox.running import until
from ways.shops import FORMS, ORDER, Shop, Work, make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind


@pytest.fixture
def producer(broker: EmbeddedBroker, outbox: Outbox) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", outbox) as made:
        yield made


@pytest.fixture(params=FORMS)
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    with FORMS[request.param](shop) as made:
        yield made


def agree(shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    until(lambda: not outbox.status().counts)
    assert texts(broker.endpoint, topic) == expected
    assert [each for each in shop.orders() if not each.startswith("before")] == expected


def test_its_normal_end_commits_both(
    shop: Shop, work: Work, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    work.write("before")
    for number in range(3):
        with producer.transaction(work.given) as tx:
            first = tx.send(topic, f"{number} a")
            work.write(f"{number} a")
            others = tx.send_many([Message(topic, f"{number} b"), Message(topic, f"{number} c")])
            work.write(f"{number} b")
            work.write(f"{number} c")
        assert tx.message_ids == (first, *others)
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
    agree(shop, outbox, broker, topic, [f"{number} {part}" for number in range(3) for part in "abc"])


def test_an_exception_rolls_both_back(
    shop: Shop, work: Work, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    with pytest.raises(KeyError), producer.transaction(work.given) as tx:
        tx.send(topic, "order")
        work.write("order")
        raise KeyError
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    with producer.transaction(work.given) as tx:
        work.write("order")
        tx.send(topic, "order")
        tx.rollback("not wanted")
        with pytest.raises(RequestRefused, match="is over"):
            tx.send(topic, "late")
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    with pytest.raises(RequestRefused), producer.transaction(work.given) as tx:
        work.write("order")
        tx.send("no topic?", "order")
    agree(shop, outbox, broker, topic, [])


def test_a_block_without_messages_is_an_ordinary_transaction(
    shop: Shop, work: Work, producer: TransactionProducer
) -> None:
    with producer.transaction(work.given) as tx:
        work.write("order")
    assert (shop.orders(), tx.result) == (["order"], None)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_transaction_was_ended_inside(
    shop: Shop, work: Work, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str, how: str
) -> None:
    with pytest.raises(LocalTransactionEnded, match="inside of its block"), producer.transaction(work.given) as tx:
        work.write("first")
        tx.send(topic, "first")
        getattr(work, how)()
        work.write("second")
        tx.send(topic, "second")
    # The message goes with the transaction that has its row; what followed is undone.
    agree(shop, outbox, broker, topic, ["first"] if how == "commit" else [])


def test_a_statement_that_commits_by_itself(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    commits = shop.kind in {"mariadb", "mysql"}
    raised = pytest.raises(LocalTransactionEnded) if commits else contextlib.nullcontext()
    with raised, Session(shop.engine) as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        session.execute(sa.text("CREATE TABLE further (number INT)"))
    # On MySQL and MariaDB the statement is refused, and nothing has happened.
    agree(shop, outbox, broker, topic, [] if commits else ["lamp"])


def test_a_transaction_that_the_server_undid(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    """As after a deadlock whose error is caught: what follows is another transaction, and would be half of a block."""
    with pytest.raises(Exception, match=r"(?i)inside|transaction"), Session(shop.engine) as session:  # noqa: SIM117
        with producer.transaction(session) as tx:
            session.execute(ORDER, {"content": "lamp"})
            session.execute(sa.text("ROLLBACK"))
            session.execute(ORDER, {"content": "chair"})
            tx.send(topic, "chair")
    agree(shop, outbox, broker, topic, [])


def test_an_error_that_the_driver_alone_saw(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    with shop.engine.begin() as connection:
        connection.execute(ORDER, {"content": "before"})
    with contextlib.suppress(DBAPIError), Session(shop.engine) as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        cursor = session.connection().connection.cursor()
        with contextlib.suppress(Exception):
            cursor.execute("INSERT INTO orders (content) VALUES ('before')")
        cursor.close()
    agree(shop, outbox, broker, topic, [] if shop.kind == "postgresql" else ["lamp"])


def test_savepoints_inside_are_the_users(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        # What is sent inside of a savepoint goes with it.
        with pytest.raises(IntegrityError), session.begin_nested():
            tx.send(topic, "lamp again")
            session.execute(ORDER, {"content": "lamp"})
    agree(shop, outbox, broker, topic, ["lamp"])
    with Session(shop.engine) as session:
        session.execute(ORDER, {"content": "chair"})
        with session.begin_nested(), pytest.raises(ConfigurationError, match="begin_nested"):
            producer.transaction(session).__enter__()


def test_an_engine_gives_the_block_a_connection(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    with producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
    with pytest.raises(KeyError), producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "chair"})
        tx.send(topic, "chair")
        raise KeyError
    agree(shop, outbox, broker, topic, ["lamp"])


def test_the_listeners_form_takes_a_function(
    shop: Shop, producer: TransactionProducer, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    def change(connection: sa.Connection) -> None:
        connection.execute(ORDER, {"content": "lamp"})

    sent = producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    assert (sent.state, len(sent.message_ids)) == (TransactionState.COMMITTED, 1)
    failed = producer.send_in_transaction(Message(topic, "lamp again"), arg=change)
    assert isinstance(failed.local_error, IntegrityError)
    assert failed.state is TransactionState.ROLLED_BACK
    with pytest.raises(ConfigurationError, match="arg is a function"):
        producer.send_in_transaction(Message(topic, "x"))
    agree(shop, outbox, broker, topic, ["lamp"])


def test_the_listeners_form_has_the_error_of_a_database_that_does_not_answer(
    shop: Shop, broker: EmbeddedBroker
) -> None:
    engine = sa.create_engine(shop.unreachable(shop.url))
    with TransactionProducer(broker.endpoint, "shop", Outbox(engine, settings=QUICK)) as producer:
        sent = producer.send_in_transaction(Message("orders", "lamp"), arg=lambda _: pytest.fail("it was called"))
    assert isinstance(sent.local_error, OperationalError)
    assert sent.state is not TransactionState.COMMITTED


def test_no_broker_is_needed(shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str) -> None:
    with TransactionProducer("127.0.0.1:1", "shop", outbox) as producer, producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 1}
    # Another process's relay sends it: this one has none.
    silent = Outbox(shop.engine, relay=False)
    with TransactionProducer(broker.endpoint, "shop", silent) as producer, producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "sofa"})
        tx.send(topic, "sofa")
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 2}
    with TransactionProducer(broker.endpoint, "shop", outbox):
        agree(shop, outbox, broker, topic, ["lamp", "sofa"])


def test_two_producers_share_an_outbox(shop: Shop, outbox: Outbox, broker: EmbeddedBroker, topic: str) -> None:
    first = TransactionProducer(broker.endpoint, "shop", outbox)
    second = TransactionProducer(broker.endpoint, "shop", outbox)
    first.close()
    first.close()
    with second:
        until(lambda: outbox.status().relay)
        with second.transaction(shop.engine) as tx:
            tx.connection.execute(ORDER, {"content": "lamp"})
            tx.send(topic, "lamp")
    assert outbox.status().relay == ""
    with pytest.raises(ClientClosed):
        first.transaction(shop.engine)


def test_another_database_is_refused(
    shop: Shop, kind: LocalKind, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    outbox = Outbox(shop.connect)
    outbox.create_tables()
    with make_shop(kind, tmp_path) as other, TransactionProducer(broker.endpoint, "shop", outbox) as producer:
        Outbox(other.engine).create_tables()
        with pytest.raises(ConfigurationError, match="not the one of the Outbox"), Session(other.engine) as session:  # noqa: SIM117
            with producer.transaction(session) as tx:
                tx.send(topic, "x")


def test_missing_tables_are_named(shop: Shop, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    with TransactionProducer(broker.endpoint, "shop", Outbox(shop.engine)) as producer:
        assert "call create_tables()" in caplog.text
        with pytest.raises(ConfigurationError, match="call create_tables"):
            producer.transaction(shop.engine).__enter__()


def test_halves_of_an_outbox_are_refused(shop: Shop, outbox: Outbox, producer: TransactionProducer) -> None:
    with pytest.raises(ConfigurationError, match="joins a local transaction"):
        producer.transaction()
    with pytest.raises(ConfigurationError, match="not of int"):
        producer.transaction(7)
    with pytest.raises(ConfigurationError, match="database is a SQLAlchemy Engine"):
        Outbox(7)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_an_outbox_may_be_made_before_a_fork(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    if shop.kind != "postgresql":
        pytest.skip("one database is enough")
    outbox = Outbox(shop.connect, settings=QUICK)
    outbox.create_tables()
    process = multiprocessing.get_context("forkserver").Process(
        target=_fresh_child, args=(shop.url, shop.kind, broker.endpoint, topic)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    with TransactionProducer(broker.endpoint, "shop", outbox):
        agree(shop, outbox, broker, topic, ["child", "parent"])


def _fresh_child(url: str, kind: Any, endpoint: str, topic: str) -> None:
    """Forks after its outbox has a relay, as a preloading web server does."""
    import os

    shop = Shop(kind, url, sa.create_engine(url))
    outbox = Outbox(shop.connect, settings=QUICK)
    with TransactionProducer(endpoint, "shop", outbox) as producer:
        with producer.transaction(shop.engine) as tx:
            tx.connection.execute(ORDER, {"content": "parent"})
            tx.send(topic, "parent")
        until(lambda: not outbox.status().counts)
        own = os.fork()
        if own == 0:
            try:
                shop.engine.dispose(close=False)
                outbox.wake()
                with Session(sa.create_engine(url)) as session:
                    session.execute(ORDER, {"content": "child"})
                    outbox.put(session, Message(topic, "child"))
                    session.commit()
            finally:
                os._exit(0)
        os.waitpid(own, 0)
        until(lambda: not outbox.status().counts and "child" in shop.orders())
