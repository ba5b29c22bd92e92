"""What is wrong before a block begins is said at its door, with the field and the remedy; nothing is written."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from client_core.ids import new_id
from consumer_sdk import ConfigurationError
from consumer_sdk.applied import AppliedMessages
from producer_sdk import (
    AsyncTransactionProducer,
    HalfMessages,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionRefused,
)
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from producer_sdk.outbox import AsyncOutbox, Outbox
from ways.deliveries import delivered
from ways.shops import ORDER, Shop, texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.embedded import EmbeddedBroker


STORES = {"fence": TransactionFence, "outbox": Outbox}
ASYNC_STORES = {"fence": AsyncTransactionFence, "outbox": AsyncOutbox}


@pytest.mark.parametrize("kind_of_store", STORES)
def test_tables_that_nobody_created(shop: Shop, broker: EmbeddedBroker, topic: str, kind_of_store: str) -> None:
    store = STORES[kind_of_store](shop.engine)
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as producer:
        with Session(shop.engine) as session:
            with pytest.raises(
                ConfigurationError, match=r"no table \S*halfmq_\w+ for this connection.*create_tables\(\)"
            ) as raised:
                producer.transaction(session).__enter__()
            assert raised.value.field == "table"
        if isinstance(store, TransactionFence):
            with pytest.raises(ConfigurationError, match="create_tables"):
                store.clean()
        store.create_tables()
        with producer.transaction(shop.engine) as tx:
            tx.connection.execute(ORDER, {"content": "lamp"})
            tx.send(topic, "lamp")
    assert shop.orders() == ["lamp"]


@pytest.mark.parametrize("kind_of_store", ASYNC_STORES)
async def test_tables_that_nobody_created_on_asyncio(shop: Shop, broker: EmbeddedBroker, kind_of_store: str) -> None:
    engine = create_async_engine(shop.async_url)
    async with (
        AsyncTransactionProducer(
            broker.endpoint, f"shop-{time.monotonic_ns()}", ASYNC_STORES[kind_of_store](engine)
        ) as producer,
        AsyncSession(engine) as session,
    ):
        with pytest.raises(ConfigurationError, match="create_tables"):
            await producer.transaction(session).__aenter__()
    await engine.dispose()


def test_marks_without_a_table(shop: Shop) -> None:
    applied = AppliedMessages(shop.engine, "accounts")
    with Session(shop.engine) as session:
        with pytest.raises(ConfigurationError, match=r"no table \S*halfmq_applied for this") as raised:
            applied.once(session, delivered(dedup_key="7")).__enter__()
        assert raised.value.field == "table"
    with pytest.raises(ConfigurationError, match="create_tables"):
        applied.handler(lambda message, connection: None)(delivered(dedup_key="7"))


@contextlib.contextmanager
def another_user(shop: Shop) -> Iterator[sa.Engine]:
    """An engine of a user that may read and write orders, and nothing else."""
    name = f"clerk_{secrets.token_hex(6)}"
    grants, ending = [f"CREATE USER {name}@'%%' IDENTIFIED BY 'secret'"], f"DROP USER {name}@'%%'"
    grants.append(f"GRANT SELECT, INSERT ON orders TO {name}@'%%'")
    if shop.kind == "postgresql":
        grants = [f"CREATE ROLE {name} LOGIN PASSWORD 'secret'", f"GRANT SELECT, INSERT ON orders TO {name}"]
        grants.append(f"GRANT USAGE ON SCHEMA public TO {name}")
        ending = f"DROP OWNED BY {name}; DROP ROLE {name}"
    with shop.engine.begin() as connection:
        for statement in grants:
            connection.exec_driver_sql(statement)
    made = sa.create_engine(shop.engine.url.set(username=name, password="secret"))
    yield made
    made.dispose()
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(ending)


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgresql"])
@pytest.mark.parametrize("kind_of_store", [*STORES, "applied"])
def test_a_user_without_rights(shop: Shop, broker: EmbeddedBroker, topic: str, kind_of_store: str) -> None:
    makes: dict[str, Callable[[sa.Engine], Any]] = {
        **STORES,
        "applied": lambda engine: AppliedMessages(engine, "accounts"),
    }
    with another_user(shop) as engine:
        store = makes[kind_of_store](engine)
        with pytest.raises(ConfigurationError, match=r"cannot be created.*CREATE.*sql\(\)") as raised:
            store.create_tables()
        assert raised.value.field == "table"
        makes[kind_of_store](shop.engine).create_tables()
        with Session(engine) as session:
            if kind_of_store == "applied":
                with pytest.raises(ConfigurationError, match=r"no right to it.*grant SELECT, INSERT") as raised:
                    store.once(session, delivered(dedup_key="7")).__enter__()
            else:
                with (
                    TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as producer,
                    pytest.raises(ConfigurationError, match=r"no right to it.*grant SELECT, INSERT") as raised,
                ):
                    producer.transaction(session).__enter__()
            assert raised.value.field == "table"


@pytest.mark.parametrize("kind_of_store", STORES)
def test_a_block_is_used_once(shop: Shop, broker: EmbeddedBroker, topic: str, kind_of_store: str) -> None:
    store = STORES[kind_of_store](shop.engine)
    store.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as producer:
        block: Any = producer.transaction(shop.engine)
        with block:
            block.send(topic, "lamp")
        with pytest.raises(TransactionRefused, match="is over; begin another one"), block:
            block.send(topic, "chair")
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != ["lamp"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind_of_store", STORES)
async def test_a_message_before_the_block_begins(
    shop: Shop, broker: EmbeddedBroker, topic: str, kind_of_store: str
) -> None:
    group = f"shop-{time.monotonic_ns()}"
    with TransactionProducer(broker.endpoint, group, STORES[kind_of_store](shop.engine)) as producer:
        block: Any = producer.transaction(shop.engine)
        with pytest.raises(TransactionRefused, match="has not begun"):
            block.send(topic, "lamp")
        with pytest.raises(TransactionRefused, match="has not begun"):
            block.rollback()
    engine = create_async_engine(shop.async_url)
    store = ASYNC_STORES[kind_of_store](engine)
    async with AsyncTransactionProducer(broker.endpoint, f"{group}-async", store) as other:
        block = other.transaction(engine)
        with pytest.raises(TransactionRefused, match="has not begun"):
            await block.send(topic, "lamp")
        with pytest.raises(TransactionRefused, match="has not begun"):
            await block.rollback()
    await engine.dispose()


async def awaited(connection: Any) -> None:
    connection.execute(ORDER, {"content": "lamp"})


@pytest.mark.parametrize("kind_of_store", STORES)
def test_a_local_transaction_that_returns_before_it_has_run(
    shop: Shop, broker: EmbeddedBroker, topic: str, kind_of_store: str
) -> None:
    store = STORES[kind_of_store](shop.engine)
    store.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as producer:
        work = lambda connection: awaited(connection)  # noqa: E731, PLW0108 - no coroutine function
        result = producer.send_in_transaction(Message(topic, "lamp"), arg=work)
        assert result.local_state is LocalTransactionState.UNKNOWN
        assert isinstance(result.local_error, TypeError)
        if kind_of_store == "outbox":
            with pytest.raises(ConfigurationError, match="no coroutine function"):
                producer.send_in_transaction(Message(topic, "lamp"), arg=awaited)
        else:
            half = HalfMessages(result.transaction_id, (Message(topic, "lamp"),))
            assert store.check_local_transaction(half) is LocalTransactionState.ROLLBACK
        # What is sent later shows that nothing came before it.
        producer.send_in_transaction(Message(topic, "chair"), arg=lambda connection: None)
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != ["chair"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert shop.orders() == []


async def test_a_local_transaction_of_a_fence_that_is_no_function(
    shop: Shop, broker: EmbeddedBroker, topic: str
) -> None:
    """Nothing is sent, so that no check has to find out what became of it."""
    group = f"shop-{time.monotonic_ns()}"
    with TransactionProducer(broker.endpoint, group, TransactionFence(shop.engine)) as producer:
        for work in (None, 3, awaited):
            with pytest.raises(ConfigurationError, match="arg is a function") as raised:
                producer.send_in_transaction(Message(topic, "lamp"), arg=work)
            assert raised.value.field == "arg"
    engine = create_async_engine(shop.async_url)
    async with AsyncTransactionProducer(broker.endpoint, f"{group}-async", AsyncTransactionFence(engine)) as other:
        with pytest.raises(ConfigurationError, match="arg is a coroutine function") as raised:
            await other.send_in_transaction(Message(topic, "lamp"))
        assert raised.value.field == "arg"
    await engine.dispose()


@pytest.mark.parametrize(
    ("database", "says"),
    [
        (lambda: None, "returned NoneType: it is a function that opens a new connection of PyMySQL"),
        (
            "mysql+nothing://shop@localhost/shop",
            r"whose driver SQLAlchemy does not know .*take one with mysql\+pymysql",
        ),
        ("mysql+asyncmy://shop@localhost/shop", r"asyncmy.*take one with mysql\+pymysql"),
        ("postgresql+pg8000://shop@localhost/shop", r"pg8000.*take one with mysql\+pymysql"),
        ("shop", "no URL that SQLAlchemy can open"),
    ],
)
def test_a_database_that_is_none(database: Any, says: str) -> None:
    for made in (TransactionFence, Outbox, lambda given: AppliedMessages(given, "accounts")):
        with pytest.raises(ConfigurationError, match=says) as raised:
            made(database).create_tables()
        assert raised.value.field == "database"


@pytest.mark.parametrize(
    ("database", "says"),
    [
        ("mysql+pymysql://shop@localhost/shop", "requires an async driver"),
        ("mysql+nothing://shop@localhost/shop", r"whose driver SQLAlchemy does not know .*mysql\+aiomysql"),
        ("mysql+asyncmy://shop@localhost/shop", r"asyncmy.*mysql\+aiomysql"),
    ],
)
def test_a_database_that_is_none_on_asyncio(database: str, says: str) -> None:
    for made in ASYNC_STORES.values():
        with pytest.raises(ConfigurationError, match=says) as raised:
            made(database)
        assert raised.value.field == "database"


@pytest.mark.parametrize("made", [Outbox, AsyncOutbox])
def test_settings_of_an_outbox_that_do_not_go_together(made: Any, tmp_path: Any) -> None:
    url = f"sqlite{'+aiosqlite' if made is AsyncOutbox else ''}:///{tmp_path / 'shop.db'}"
    with pytest.raises(ConfigurationError, match="same_server=True") as raised:
        made(url, broker_tables="halfmq.")
    assert raised.value.field == "broker_tables"
    with pytest.raises(ConfigurationError, match="outbox's own table") as raised:
        made(url, same_server=True, decide=lambda message: None)
    assert raised.value.field == "decide"


@pytest.mark.parametrize("kind_of_store", STORES)
def test_a_session_that_commits_in_two_phases(shop: Shop, broker: EmbeddedBroker, kind_of_store: str) -> None:
    """What is prepared on MySQL keeps its locks, whatever becomes of the process."""
    store = STORES[kind_of_store](shop.engine)
    store.create_tables()
    with (
        TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as producer,
        Session(shop.engine, twophase=True) as session,
        pytest.raises(ConfigurationError, match="twophase") as raised,
    ):
        producer.transaction(session).__enter__()
    assert raised.value.field == "database"


def test_a_connection_that_its_last_user_left_locked_is_not_used_for_each_check(shop: Shop) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("LOCK TABLES of MySQL outlives the transaction")
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0)
    fence = TransactionFence(engine)
    fence.create_tables()
    with engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLES orders READ")
    own = HalfMessages(new_id(), ())
    with pytest.raises(sa.exc.DBAPIError, match="1100"):
        fence.check_local_transaction(own)
    assert fence.check_local_transaction(own) is LocalTransactionState.ROLLBACK
    engine.dispose()


@pytest.mark.parametrize("kind_of_store", STORES)
def test_texts_that_come_as_bytes_are_refused(shop: Shop, kind_of_store: str) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("an option of PyMySQL")
    engine = sa.create_engine(f"{shop.url}?use_unicode=0")
    store = STORES[kind_of_store](engine)
    with pytest.raises(ConfigurationError, match="leave use_unicode out") as raised:
        store.create_tables()
    assert raised.value.field == "database"
    STORES[kind_of_store](shop.engine).create_tables()
    if isinstance(store, TransactionFence):
        with pytest.raises(ConfigurationError, match="leave use_unicode out"):
            store.check_local_transaction(HalfMessages(new_id(), ()))
    with pytest.raises(ConfigurationError, match="leave use_unicode out"):
        TransactionProducer("127.0.0.1:1", "shop", store)
    engine.dispose()


def test_characters_that_a_connection_cannot_carry_are_named(shop: Shop) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("the other drivers have one character set")
    engine = sa.create_engine(f"{shop.url}?charset=latin1")
    outbox, applied = Outbox(engine), AppliedMessages(engine, "accounts")
    outbox.create_tables()
    applied.create_tables()
    with Session(engine) as session, session.begin():
        outbox.put(session, Message("orders", "Ωµέγα", properties={"to": "Zürich"}))
        with pytest.raises(ConfigurationError, match=r"character set \S+ has no 'Ω'.*charset=utf8mb4") as raised:
            outbox.put(session, Message("orders", "x", message_group="Ωµέγα"))
        assert raised.value.field == "database"
        with pytest.raises(ConfigurationError, match="has no 'Ω'"):
            applied.mark(session, delivered(dedup_key="Ω"))
    assert sum(outbox.status().counts.values()) == 1
    engine.dispose()


def test_a_limit_of_rows_that_sessions_have_changes_nothing(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("a variable of MySQL and MariaDB")
    engine = sa.create_engine(shop.url, connect_args={"init_command": "SET sql_select_limit = 1"})
    fence, outbox = TransactionFence(engine), Outbox(engine)
    fence.create_tables()
    outbox.create_tables()
    assert fence.check_local_transaction(HalfMessages(new_id(), ())) is LocalTransactionState.ROLLBACK
    with TransactionProducer(broker.endpoint, "shop", outbox) as producer:
        for content in ("lamp", "desk"):
            with producer.transaction(engine) as tx:
                tx.send(topic, content)
                tx.send(topic, f"another {content}")
        deadline = time.monotonic() + 30
        while len(texts(broker.endpoint, topic)) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    engine.dispose()
