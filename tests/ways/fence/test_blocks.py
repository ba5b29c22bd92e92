"""The block `with producer.transaction(session) as tx`: the order is there and its message is, or neither."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from producer_sdk import (
    ConfigurationError,
    LocalTransactionEnded,
    Message,
    RequestRefused,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.fence import TransactionFence
from ways.shops import FORMS, ORDER, Shop, Work, make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker
    from support.databases import LocalKind

ENOUGH = 30.0


@pytest.fixture
def fence(shop: Shop) -> TransactionFence:
    made = TransactionFence(shop.engine)
    made.create_tables()
    return made


@pytest.fixture
def producer(broker: EmbeddedBroker, fence: TransactionFence) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


@pytest.fixture(params=FORMS)
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    """A session or a connection."""
    with FORMS[request.param](shop) as made:
        yield made


def until(holds: Any) -> None:
    deadline = time.monotonic() + ENOUGH
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_its_normal_end_commits_both(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    for number in range(3):
        with producer.transaction(work.given) as tx:
            tx.send(topic, f"order {number}")
            work.write(f"order {number}")
            tx.send(topic, f"invoice {number}")
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
    assert shop.orders() == ["order 0", "order 1", "order 2"]
    assert texts(broker.endpoint, topic) == [f"{what} {number}" for what in ("invoice", "order") for number in range(3)]
    # What the broker acknowledged needs no row any more.
    until(lambda: not shop.fences())


def test_it_joins_what_the_session_did_before(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    work.write("before")
    with producer.transaction(work.given) as tx:
        tx.send(topic, "sent")
    assert (shop.orders(), texts(broker.endpoint, topic)) == (["before"], ["sent"])


def test_an_exception_rolls_both_back(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with pytest.raises(KeyError), producer.transaction(work.given) as tx:
        tx.send(topic, "order")
        work.write("order")
        raise KeyError
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    assert (shop.orders(), texts(broker.endpoint, topic)) == ([], [])
    # The session can be used again at once.
    with producer.transaction(work.given) as tx:
        work.write("order")
        tx.send(topic, "order")
    assert (shop.orders(), texts(broker.endpoint, topic)) == (["order"], ["order"])
    until(lambda: not shop.fences())


def test_a_rollback_by_hand_rolls_both_back(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with producer.transaction(work.given) as tx:
        tx.send(topic, "order")
        work.write("order")
        tx.rollback("not wanted")
    assert tx.result is not None
    assert tx.result.state is TransactionState.ROLLED_BACK
    assert (shop.orders(), texts(broker.endpoint, topic)) == ([], [])
    assert producer.get_transaction(tx.transaction_id).verdict.reason == "not wanted"


def test_a_refused_message_rolls_both_back(shop: Shop, work: Work, producer: TransactionProducer) -> None:
    with pytest.raises(RequestRefused), producer.transaction(work.given) as tx:
        work.write("order")
        tx.send("no topic?", "order")
    assert shop.orders() == []
    assert tx.result is None


def test_an_id_of_ones_own_is_refused(shop: Shop, work: Work, producer: TransactionProducer, topic: str) -> None:
    with pytest.raises(ValueError, match="a half message is named by its transaction"):  # noqa: SIM117
        with producer.transaction(work.given) as tx:
            work.write("lamp")
            tx.send_many([Message(topic, "lamp", message_id=str(uuid.uuid4()))])
    assert shop.orders() == []


def test_a_block_without_messages_is_an_ordinary_transaction(
    shop: Shop, work: Work, producer: TransactionProducer
) -> None:
    with producer.transaction(work.given) as tx:
        work.write("order")
    assert (shop.orders(), tx.result) == (["order"], None)
    until(lambda: not shop.fences())


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_transaction_was_ended_inside(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, how: str
) -> None:
    with pytest.raises(LocalTransactionEnded, match="inside of its block"), producer.transaction(work.given) as tx:
        work.write("first")
        tx.send(topic, "order")
        getattr(work, how)()
        work.write("second")
    happened = how == "commit"
    # The messages go with the transaction that has the row; what followed is undone.
    assert (shop.orders(), texts(broker.endpoint, topic)) == ((["first"], ["order"]) if happened else ([], []))
    assert tx.result is not None
    assert tx.result.state is (TransactionState.COMMITTED if happened else TransactionState.ROLLED_BACK)


def test_the_transaction_was_ended_inside_and_nothing_followed(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with pytest.raises(LocalTransactionEnded), producer.transaction(work.given) as tx:
        tx.send(topic, "order")
        work.write("first")
        work.rollback()
    assert (shop.orders(), texts(broker.endpoint, topic)) == ([], [])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    content: Mapped[str] = mapped_column(primary_key=True)


def test_what_fails_only_when_the_session_is_flushed(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session, producer.transaction(session) as tx:
        session.add(Order(content="lamp"))
        tx.send(topic, "lamp")
    with Session(shop.engine) as session:
        with pytest.raises(IntegrityError), producer.transaction(session) as tx:
            session.add(Order(content="lamp"))
            tx.send(topic, "lamp again")
        assert tx.result is not None
        assert tx.result.state is TransactionState.ROLLED_BACK
    assert (shop.orders(), texts(broker.endpoint, topic)) == (["lamp"], ["lamp"])


def test_what_the_session_holds_back_is_not_flushed_by_the_fence(shop: Shop, producer: TransactionProducer) -> None:
    with Session(shop.engine) as session:
        session.add(Order(content="lamp"))
        with producer.transaction(session):
            assert list(session.new)
        assert shop.orders() == ["lamp"]


def test_inside_of_the_sessions_own_begin(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session, session.begin(), producer.transaction(session) as tx:
        session.add(Order(content="lamp"))
        tx.send(topic, "lamp")
    with shop.engine.begin() as connection, producer.transaction(connection) as tx:
        connection.execute(ORDER, {"content": "chair"})
        tx.send(topic, "chair")
    assert shop.orders() == texts(broker.endpoint, topic) == ["chair", "lamp"]


def test_savepoints_inside_are_the_users(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"content": "lamp"})
        with pytest.raises(IntegrityError), session.begin_nested():
            tx.send(topic, "lamp")
            session.execute(ORDER, {"content": "lamp"})
    assert (shop.orders(), texts(broker.endpoint, topic)) == (["lamp"], ["lamp"])


def test_a_savepoint_around_it_is_refused(shop: Shop, producer: TransactionProducer) -> None:
    with Session(shop.engine) as session:
        session.execute(ORDER, {"content": "lamp"})
        with session.begin_nested(), pytest.raises(ConfigurationError, match="begin_nested"):
            producer.transaction(session).__enter__()


def test_an_engine_gives_the_block_a_connection(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
    with pytest.raises(KeyError), producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "chair"})
        tx.send(topic, "chair")
        raise KeyError
    assert shop.orders() == texts(broker.endpoint, topic) == ["lamp"]
    assert shop.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_the_listeners_form_takes_a_function(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    def change(connection: sa.Connection) -> None:
        connection.execute(ORDER, {"content": "lamp"})

    def refuse(connection: sa.Connection) -> None:
        connection.execute(ORDER, {"content": "chair"})
        raise KeyError("no")

    sent = producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    assert sent.state is TransactionState.COMMITTED
    failed = producer.send_in_transaction(Message(topic, "lamp again"), arg=change)
    assert isinstance(failed.local_error, IntegrityError)
    refused = producer.send_in_transaction(Message(topic, "chair"), arg=refuse)
    assert isinstance(refused.local_error, KeyError)
    # Left to checks, which answer exactly.
    for each in (failed, refused):
        until(lambda each=each: producer.get_transaction(each.transaction_id).state is TransactionState.ROLLED_BACK)
    assert shop.orders() == texts(broker.endpoint, topic) == ["lamp"]


def test_another_database_is_refused(
    shop: Shop, kind: LocalKind, producer: TransactionProducer, tmp_path: Path
) -> None:
    with make_shop(kind, tmp_path) as other:
        TransactionFence(other.engine).create_tables()
        for form in FORMS.values():
            with form(other) as work, pytest.raises(ConfigurationError, match="not the one that the fence looks at"):
                producer.transaction(work.given).__enter__()
    assert shop.fences() == {}


@pytest.mark.parametrize("form", ["engine", "connection", "driver"])
def test_what_commits_by_itself_is_refused_or_begun(
    shop: Shop, kind: LocalKind, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, form: str
) -> None:
    if form == "driver":
        connection = shop.connect()
        if kind == "sqlite":
            connection.isolation_level = None
        elif kind == "postgresql":
            connection.autocommit = True
        else:
            connection.autocommit(True)
        with pytest.raises(KeyError), producer.transaction(connection) as tx:
            tx.send(topic, "lamp")
            raise KeyError
        with producer.transaction(connection) as tx:
            tx.send(topic, "chair")
        assert texts(broker.endpoint, topic) == ["chair"]
        connection.close()
        return
    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        producer.transaction(engine if form == "engine" else connection).__enter__()


def test_halves_of_a_fence_are_refused(broker: EmbeddedBroker, shop: Shop, fence: TransactionFence) -> None:
    with TransactionProducer(broker.endpoint, "shop") as bare, pytest.raises(ConfigurationError, match="needs a fence"):
        bare.transaction(shop.engine)
    with TransactionProducer(broker.endpoint, "shop", fence) as fenced:
        with pytest.raises(ConfigurationError, match="joins a local transaction"):
            fenced.transaction()
        with pytest.raises(ConfigurationError, match="not of int"):
            fenced.transaction(7)
        with pytest.raises(ConfigurationError, match="arg is a function"):
            raise fenced.send_in_transaction(Message("orders", "x")).local_error or AssertionError


@pytest.mark.parametrize("database", [7, None, object()])
def test_what_is_no_database_is_refused(database: object) -> None:
    with pytest.raises(ConfigurationError, match="database is a SQLAlchemy Engine") as refused:
        TransactionFence(database)
    assert refused.value.field == "database"


def test_engines_with_one_connection_for_all_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="connections of their own"):
        TransactionFence(sa.create_engine("sqlite://"))
    with pytest.raises(ConfigurationError, match="connections of their own"):
        TransactionFence(sa.create_engine("sqlite:///x.db", poolclass=sa.StaticPool))
    with pytest.raises(ConfigurationError, match="table is a name"):
        TransactionFence("sqlite:///x.db", table="no; DROP TABLE orders")
