"""What drivers do beside statements: rows read one by one, pipelines, transactions and savepoints of their own."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from consumer_sdk.applied import AppliedMessages
from producer_sdk import ConfigurationError, LocalTransactionEnded, Message, RequestRefused, TransactionProducer
from producer_sdk.fence import TransactionFence
from producer_sdk.outbox import AsyncOutbox, Outbox, RelaySettings
from ways.deliveries import delivered
from ways.shops import ORDER, OfDriver, Shop, make_shop, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker

MYSQL = {"mysql", "mariadb"}
MANY = 3000


@pytest.fixture
def outbox(shop: Shop) -> Outbox:
    made = Outbox(shop.engine, settings=RelaySettings(poll=0.05))
    made.create_tables()
    return made


@pytest.fixture(params=["fence", "outbox"])
def producer(
    request: pytest.FixtureRequest, shop: Shop, broker: EmbeddedBroker, outbox: Outbox
) -> Iterator[TransactionProducer]:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    store = fence if request.param == "fence" else outbox
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as made:
        yield made


@pytest.fixture
def many(shop: Shop) -> None:
    """So many orders that they come in several packets."""
    with shop.engine.begin() as connection:
        connection.execute(ORDER, [{"content": f"{number:05}"} for number in range(MANY)])


def soon(broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while (found := texts(broker.endpoint, topic)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("of", ["session", "driver"])
def test_rows_that_are_read_one_by_one(shop: Shop, outbox: Outbox, of: str) -> None:
    """PyMySQL would drop the rest of them when another statement comes; other drivers keep both apart."""
    with contextlib.ExitStack() as opened:
        if of == "session":
            given: Any = opened.enter_context(Session(shop.engine))
            rows = given.execute(sa.text("SELECT content FROM orders ORDER BY content").execution_options(yield_per=10))
        else:
            given = opened.enter_context(contextlib.closing(shop.connect()))
            cursor = given.cursor(pymysql.cursors.SSCursor) if shop.kind in MYSQL else given.cursor()
            opened.callback(cursor.close)
            cursor.execute("SELECT content FROM orders ORDER BY content")
            rows = iter(cursor)
        found, refused = 0, 0
        for content in rows:
            found += 1
            if found < 4:
                try:
                    outbox.put(given, Message("orders", content[0]))
                except ConfigurationError as error:
                    assert "read them to their end" in str(error)
                    assert error.field == "database"
                    refused += 1
        assert found == MANY
        assert refused == (3 if shop.kind in MYSQL else 0)
        outbox.put(given, Message("orders", "after"))
        given.commit()
    assert sum(outbox.status().counts.values()) == (1 if refused else 4)


@pytest.mark.usefixtures("many")
async def test_rows_that_are_read_one_by_one_on_asyncio(shop: Shop, outbox: Outbox) -> None:
    engine = create_async_engine(shop.async_url)
    async with AsyncSession(engine) as session:
        stream = await session.stream(
            sa.text("SELECT content FROM orders ORDER BY content").execution_options(yield_per=10)
        )
        found, refused = 0, 0
        async for content in stream:
            found += 1
            if found < 4:
                try:
                    await AsyncOutbox(engine).put(session, Message("orders", content[0]))
                except ConfigurationError as error:
                    assert "read them to their end" in str(error)
                    refused += 1
        assert found == MANY
        assert refused == (3 if shop.kind in MYSQL else 0)
        await session.commit()
    await engine.dispose()


@pytest.mark.usefixtures("many")
def test_a_block_while_rows_are_read_one_by_one(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    with Session(shop.engine) as session:
        rows = session.execute(sa.text("SELECT content FROM orders ORDER BY content").execution_options(yield_per=10))
        next(rows)
        if shop.kind in MYSQL:
            with pytest.raises(ConfigurationError, match="read them to their end"):
                producer.transaction(session).__enter__()
        assert len(rows.all()) == MANY - 1
        with producer.transaction(session) as tx:
            tx.send(topic, "chair")
    soon(broker, topic, ["chair"])


def test_rows_of_a_procedure_that_are_read_while_messages_are_sent(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, request: pytest.FixtureRequest
) -> None:
    """A procedure may have committed; that is asked for when its rows are read."""
    if shop.kind not in MYSQL or "outbox" in request.node.callspec.id:
        pytest.skip("PyMySQL's, with messages that are no rows")
    with shop.engine.begin() as connection:
        connection.execute(ORDER, [{"content": f"{number:05}"} for number in range(MANY)])
        connection.exec_driver_sql("CREATE PROCEDURE listed() BEGIN SELECT content FROM orders ORDER BY content; END")
    with contextlib.closing(shop.connect()) as connection, producer.transaction(connection) as tx:
        OfDriver(connection).write("lamp")
        with contextlib.closing(connection.cursor(pymysql.cursors.SSCursor)) as cursor:
            cursor.execute("CALL listed()")
            found = 0
            for _ in cursor:
                found += 1
                if found < 3:
                    tx.send(topic, f"{found}")
            assert found == MANY + 1
        tx.send(topic, "last")
    soon(broker, topic, ["1", "2", "last"])


@pytest.fixture
def psycopg_connection(shop: Shop) -> Iterator[Any]:
    if shop.kind != "postgresql":
        pytest.skip("psycopg's own")
    with contextlib.closing(shop.connect()) as connection:
        yield connection


def test_a_savepoint_of_psycopg_that_is_rolled_back(
    shop: Shop,
    psycopg_connection: Any,
    outbox: Outbox,
    producer: TransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
    request: pytest.FixtureRequest,
) -> None:
    fenced = "fence" in request.node.callspec.id
    work, connection = OfDriver(psycopg_connection), psycopg_connection
    for by in ("transaction", "statement"):
        raised = pytest.raises(LocalTransactionEnded, match="savepoint") if fenced else contextlib.nullcontext()
        with raised, producer.transaction(connection) as tx:
            work.write(f"{by} 1")
            tx.send(topic, f"{by} 1")
            if by == "transaction":
                with contextlib.suppress(KeyError), connection.transaction():
                    work.write(f"{by} 2")
                    tx.send(topic, f"{by} 2")
                    raise KeyError
            else:
                connection.execute("SAVEPOINT here")
                work.write(f"{by} 2")
                tx.send(topic, f"{by} 2")
                connection.execute("ROLLBACK TO here")
    with producer.transaction(connection) as tx:
        with connection.transaction():
            work.write("kept")
            tx.send(topic, "kept")
        with contextlib.suppress(KeyError), connection.transaction():
            work.write("dropped")
            raise KeyError
        with contextlib.suppress(RequestRefused), connection.transaction():
            work.write("refused")
            tx.send("no topic?", "refused")
        tx.send(topic, "last")
    expected = ["kept", "last"] if fenced else ["kept", "last", "statement 1", "transaction 1"]
    soon(broker, topic, expected)
    assert shop.orders() == [each for each in expected if each != "last"]


def test_a_block_inside_of_a_transaction_of_psycopg(
    shop: Shop, psycopg_connection: Any, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    applied = AppliedMessages(shop.engine, "accounts")
    applied.create_tables()
    with psycopg_connection.transaction():
        with pytest.raises(ConfigurationError, match=r"connection\.transaction\(\)") as raised:
            producer.transaction(psycopg_connection).__enter__()
        assert raised.value.field == "database"
        with pytest.raises(ConfigurationError, match=r"applied\.mark"):
            applied.once(psycopg_connection, delivered(dedup_key="7")).__enter__()
        assert applied.mark(psycopg_connection, delivered(dedup_key="7"))
        OfDriver(psycopg_connection).write("lamp")
    assert shop.orders() == ["lamp"]
    with producer.transaction(psycopg_connection) as tx:
        tx.send(topic, "lamp")
    soon(broker, topic, ["lamp"])


def test_a_pipeline_of_psycopg(
    psycopg_connection: Any, outbox: Outbox, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    connection = psycopg_connection
    with connection.pipeline():
        OfDriver(connection).write("lamp")
        with pytest.raises(ConfigurationError, match="pipeline") as raised:
            outbox.put(connection, Message(topic, "lamp"))
        assert raised.value.field == "database"
        with pytest.raises(ConfigurationError, match="pipeline"):
            producer.transaction(connection).__enter__()
    connection.commit()
    with producer.transaction(connection) as tx:
        with connection.pipeline():
            OfDriver(connection).write("chair")
        tx.send(topic, "chair")
    soon(broker, topic, ["chair"])
    assert not outbox.status().counts


def test_a_savepoint_that_a_driver_of_mysql_rolls_back(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, request: pytest.FixtureRequest
) -> None:
    if shop.kind not in MYSQL:
        pytest.skip("statements of other drivers cannot be seen")
    fenced = "fence" in request.node.callspec.id
    raised = pytest.raises(LocalTransactionEnded, match="savepoint") if fenced else contextlib.nullcontext()
    with contextlib.closing(shop.connect()) as connection:
        work = OfDriver(connection)
        with raised, producer.transaction(connection) as tx:
            work.write("lamp")
            tx.send(topic, "lamp")
            connection.query("SAVEPOINT here")
            work.write("chair")
            tx.send(topic, "chair")
            connection.query("ROLLBACK TO here")
        for statement in ("commit", "truncate orders", "set autocommit = 1"):
            with producer.transaction(connection) as tx:
                with pytest.raises(LocalTransactionEnded, match="was not run"):
                    connection.query(statement)
                work.write(statement)
                tx.send(topic, statement)
        assert "query" not in vars(connection)
    expected = sorted(["commit", "set autocommit = 1", "truncate orders", *([] if fenced else ["lamp"])])
    soon(broker, topic, expected)
    assert shop.orders() == expected


@pytest.mark.parametrize("level", ["", None, "IMMEDIATE"])
def test_a_savepoint_of_sqlite3_that_is_rolled_back(
    tmp_path: Path, broker: EmbeddedBroker, topic: str, level: Any
) -> None:
    with make_shop("sqlite", tmp_path) as shop:
        fence = TransactionFence(shop.engine)
        fence.create_tables()
        with (
            TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer,
            contextlib.closing(shop.connect()) as connection,
        ):
            connection.isolation_level = level
            work = OfDriver(connection)
            for before in (0, 1):
                lost = pytest.raises(LocalTransactionEnded, match="savepoint")
                with lost, producer.transaction(connection) as tx:
                    for number in range(before):
                        tx.send(topic, f"before {number}")
                    connection.execute("SAVEPOINT here")
                    work.write("lost")
                    tx.send(topic, "lost")
                    connection.execute("ROLLBACK TO here")
            with producer.transaction(connection) as tx:
                connection.execute("SAVEPOINT here")
                work.write("kept")
                tx.send(topic, "kept")
                connection.execute("RELEASE here")
                connection.execute("SAVEPOINT here")
                work.write("dropped")
                with pytest.raises(RequestRefused):
                    tx.send("no topic?", "refused")
                connection.execute("ROLLBACK TO here")
                connection.execute("SAVEPOINT still_open")
                tx.send(topic, "last")
            with producer.transaction(connection) as tx:
                tx.send(topic, "again")
            rest = connection.execute("SELECT COUNT(*) FROM temp.halfmq_sent").fetchone()
            assert rest == (0,)
        soon(broker, topic, ["again", "kept", "last"])
        assert shop.orders() == ["kept"]
