"""What user code does inside of blocks, and what servers do by themselves: rows and messages agree all the same."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from producer_sdk import ConfigurationError, LocalTransactionEnded, Message, TransactionProducer, TransactionState
from producer_sdk.fence import TransactionFence
from ways.shops import ORDER, Shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker


@pytest.fixture
def fence(shop: Shop) -> TransactionFence:
    made = TransactionFence(shop.engine)
    made.create_tables()
    return made


@pytest.fixture
def producer(broker: EmbeddedBroker, fence: TransactionFence) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


def write(connection: Any, content: str) -> None:
    connection.execute(ORDER, {"content": content})


def agree(shop: Shop, broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != expected:
        assert time.monotonic() < deadline, (texts(broker.endpoint, topic), expected)
        time.sleep(0.05)
    assert [each for each in shop.orders() if not each.startswith("before")] == expected


def test_a_function_that_catches_an_error_of_the_database(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with shop.engine.begin() as connection:
        write(connection, "before")

    def change(connection: Any) -> None:
        write(connection, "lamp")
        with contextlib.suppress(IntegrityError):
            write(connection, "before")

    producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    # PostgreSQL undoes all of it at a COMMIT that looks like one.
    agree(shop, broker, topic, [] if shop.kind == "postgresql" else ["lamp"])


def test_a_function_that_rolls_back_and_goes_on(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    def change(connection: Any) -> None:
        write(connection, "lamp")
        connection.rollback()
        write(connection, "chair")

    sent = producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    assert isinstance(sent.local_error, LocalTransactionEnded)
    agree(shop, broker, topic, [])


def test_an_error_that_the_driver_alone_saw(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with shop.engine.begin() as connection:
        write(connection, "before")
    with contextlib.suppress(DBAPIError), Session(shop.engine) as session, producer.transaction(session) as tx:
        write(session, "lamp")
        tx.send(topic, "lamp")
        cursor = session.connection().connection.cursor()
        with contextlib.suppress(Exception):
            cursor.execute("INSERT INTO orders (content) VALUES ('before')")
        cursor.close()
    agree(shop, broker, topic, [] if shop.kind == "postgresql" else ["lamp"])


@pytest.mark.parametrize("then", ["error", "rollback", "nothing"])
def test_a_statement_that_commits_by_itself(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, then: str
) -> None:
    """TRUNCATE and other DDL do on MySQL and MariaDB, and are refused; elsewhere they are part of the transaction."""
    commits = shop.kind in {"mariadb", "mysql"}
    error = LocalTransactionEnded if commits else KeyError if then == "error" else None
    raised = pytest.raises(error) if error else contextlib.nullcontext()
    with raised, Session(shop.engine) as session, producer.transaction(session) as tx:
        write(session, "lamp")
        tx.send(topic, "lamp")
        session.execute(sa.text("CREATE TABLE further (number INT)"))
        if then == "error":
            raise KeyError
        if then == "rollback":
            tx.rollback()
    agree(shop, broker, topic, ["lamp"] if not commits and then == "nothing" else [])
    assert sa.inspect(shop.engine).has_table("further") == (not commits and then == "nothing")


def test_a_commit_by_hand_before_a_rollback(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session, pytest.raises(LocalTransactionEnded), producer.transaction(session) as tx:
        write(session, "lamp")
        tx.send(topic, "lamp")
        session.commit()
        tx.rollback()
    assert tx.result is not None
    assert tx.result.state is TransactionState.COMMITTED
    agree(shop, broker, topic, ["lamp"])


def test_a_rollback_by_statement_and_more_work(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with pytest.raises(Exception, match=r"(?i)inside|transaction"):  # noqa: SIM117
        with Session(shop.engine) as session, producer.transaction(session) as tx:
            write(session, "lamp")
            tx.send(topic, "lamp")
            session.execute(sa.text("ROLLBACK"))
            write(session, "chair")
    agree(shop, broker, topic, [])


def test_the_end_of_a_block_does_nothing_again(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session:
        with producer.transaction(session) as tx:
            write(session, "lamp")
            tx.send(topic, "lamp")
        write(session, "chair")
        with pytest.raises(Exception, match="is over"):
            tx.rollback()
        session.commit()
    assert shop.orders() == ["chair", "lamp"]
    assert texts(broker.endpoint, topic) == ["lamp"]


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"])
def test_a_session_that_is_part_of_its_connections_transaction(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, mode: Any
) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        session = Session(bind=connection, join_transaction_mode=mode)
        if mode != "control_fully":
            with pytest.raises(ConfigurationError, match="part of a transaction"):
                producer.transaction(session).__enter__()
            return
        with producer.transaction(session) as tx:
            write(session, "lamp")
            tx.send(topic, "lamp")
        session.close()
    agree(shop, broker, topic, ["lamp"])


def test_a_session_on_several_databases_is_refused(shop: Shop, producer: TransactionProducer) -> None:
    other = sa.create_engine("sqlite:///other.db")
    table = sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer))
    with Session(shop.engine, binds={table: other}) as session, pytest.raises(ConfigurationError, match="several"):
        producer.transaction(session).__enter__()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ UNCOMMITTED"])
def test_engines_without_isolation_are_refused(shop: Shop, level: str) -> None:
    for engine in (
        shop.engine.execution_options(isolation_level=level),
        sa.create_engine(shop.engine.url, isolation_level=level),
    ):
        with pytest.raises(ConfigurationError, match=f"isolation_level is {level}"):
            TransactionFence(engine)


def test_a_send_that_is_under_way_belongs_to_the_block(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    for number in range(20):
        sent: list[str] = []

        def send(tx: Any, number: int = number, sent: list[str] = sent) -> None:
            with contextlib.suppress(Exception):
                sent.append(tx.send(topic, f"{number:02}"))

        with Session(shop.engine) as session:
            with producer.transaction(session) as tx:
                sending = threading.Thread(target=send, args=(tx,))
                sending.start()
                time.sleep(0.0005 * (number % 4))
                write(session, f"{number:02}")
            sending.join()
        if not sent:  # It came after the end, and was refused.
            with shop.engine.begin() as connection:
                connection.execute(sa.text("DELETE FROM orders WHERE content = :content"), {"content": f"{number:02}"})
    assert texts(broker.endpoint, topic) == shop.orders()


def test_a_refused_block_leaves_the_sessions_work_alone(shop: Shop, producer: TransactionProducer) -> None:
    with Session(shop.engine) as session:
        write(session, "lamp")
        with session.begin_nested(), pytest.raises(ConfigurationError):
            producer.transaction(session).__enter__()
        session.commit()
    assert shop.orders() == ["lamp"]


def test_values_of_rows_do_not_go_to_the_broker(shop: Shop, producer: TransactionProducer, topic: str) -> None:
    with shop.engine.begin() as connection:
        write(connection, "card 4111")
    with pytest.raises(IntegrityError), Session(shop.engine) as session, producer.transaction(session) as tx:
        tx.send(topic, "x")
        write(session, "card 4111")
    reason = producer.get_transaction(tx.transaction_id).verdict.reason
    assert reason.startswith("IntegrityError")
    assert "4111" not in reason


def test_a_schema_that_changed_on_the_way(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, fence: TransactionFence, topic: str
) -> None:
    if shop.kind != "postgresql":
        pytest.skip("search_path is PostgreSQL's")
    with producer.transaction(shop.engine) as tx:
        tx.send(topic, "lamp")
        write(tx.connection, "lamp")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant")
        connection.exec_driver_sql(fence.sql("postgresql").replace("halfmq_fence", "tenant.halfmq_fence"))
    with Session(shop.engine) as session:
        session.execute(sa.text("SET LOCAL search_path = tenant, public"))
        with pytest.raises(ConfigurationError, match="not the one"), producer.transaction(session) as tx:
            tx.send(topic, "chair")
            write(session, "chair")
    agree(shop, broker, topic, ["lamp"])
