"""A fence on a copy of the database: its checks would look in the wrong place, so its blocks are refused."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from producer_sdk import AsyncTransactionProducer, ConfigurationError, TransactionProducer
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from ways.shops import FORMS, ORDER, Shop, make_shop, texts, write_by_django

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from broker.embedded import EmbeddedBroker


@pytest.fixture
def copy(shop: Shop, tmp_path: Path) -> Iterator[Shop]:
    """A copy of the database, with the same table of the fence."""
    TransactionFence(shop.engine).create_tables()
    if shop.kind == "sqlite":
        path = tmp_path / "copy.db"
        shutil.copy(str(shop.engine.url.database), path)
        engine = sa.create_engine(f"sqlite:///{path}")
        yield Shop(shop.kind, str(engine.url), engine)
        engine.dispose()
        return
    with make_shop(shop.kind, tmp_path) as made:
        with shop.engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT transaction_id, state FROM halfmq_fence")).all()
        with made.engine.begin() as connection:
            connection.exec_driver_sql(TransactionFence(made.engine).sql(shop.kind))
            for name, state in rows:
                values = {"id": name, "state": state}
                connection.execute(sa.text("INSERT INTO halfmq_fence VALUES (:id, :state)"), values)
        yield made


@pytest.mark.parametrize("form", FORMS)
def test_a_fence_on_a_copy_is_refused(shop: Shop, copy: Shop, broker: EmbeddedBroker, topic: str, form: str) -> None:
    for given in (copy.engine, copy.url, copy.connect):
        fence = TransactionFence(given)
        with TransactionProducer(broker.endpoint, "shop", fence) as producer, FORMS[form](shop) as work:
            for _ in range(2):
                with pytest.raises(ConfigurationError, match="is a copy of the one that") as refused:  # noqa: SIM117
                    with producer.transaction(work.given) as tx:
                        work.write("lamp")
                        tx.send(topic, "lamp")
                assert refused.value.field == "database"
        fence.close()
    assert shop.orders() == []
    assert shop.fences() == copy.fences() == {}
    assert texts(broker.endpoint, topic) == []


def test_the_same_database_by_another_engine_is_compared_once(
    shop: Shop, copy: Shop, broker: EmbeddedBroker, topic: str
) -> None:
    engine = sa.create_engine(shop.url)
    looks = ("NOWAIT", "INSERT INTO halfmq_fence", "PRAGMA database_list")
    ran: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: ran.append(args[2]))
    try:
        with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", TransactionFence(engine)) as producer:
            counts = []
            for content in ("lamp", "chair", "desk"):
                ran.clear()
                with Session(shop.engine) as session, producer.transaction(session) as tx:
                    counts.append(len([each for each in ran if any(look in each for look in looks)]))
                    session.execute(ORDER, {"content": content})
                    tx.send(topic, content)
            assert counts == [1, 0, 0]
    finally:
        engine.dispose()
    assert len(shop.orders()) == 3


def test_an_engine_with_options_of_its_own_is_the_same(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    fence = TransactionFence(shop.engine)
    fence.create_tables()
    serializable = shop.engine.execution_options(isolation_level="SERIALIZABLE")
    group = f"shop-{time.monotonic_ns()}"
    with TransactionProducer(broker.endpoint, group, fence) as producer, producer.transaction(serializable) as tx:
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
    assert shop.orders() == ["lamp"]


@pytest.mark.parametrize("name", ["url", "connect"])
@pytest.mark.parametrize("form", FORMS)
def test_other_connections_of_the_same_database_will_do(
    shop: Shop, broker: EmbeddedBroker, topic: str, form: str, name: str
) -> None:
    fence = TransactionFence(getattr(shop, name))
    fence.create_tables()
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer:
        for content in ("chair", "lamp"):
            with FORMS[form](shop) as work, producer.transaction(work.given) as tx:
                work.write(content)
                tx.send(topic, content)
    fence.close()
    assert shop.orders() == ["chair", "lamp"]


def test_a_link_to_the_file_is_the_file(tmp_path: Path, broker: EmbeddedBroker, topic: str) -> None:
    with make_shop("sqlite", tmp_path) as shop:
        (tmp_path / "link.db").symlink_to(str(shop.engine.url.database))
        fence = TransactionFence(f"sqlite:///{tmp_path / 'link.db'}")
        fence.create_tables()
        with (
            TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as producer,
            Session(shop.engine) as session,
            producer.transaction(session) as tx,
        ):
            session.execute(ORDER, {"content": "lamp"})
            tx.send(topic, "lamp")
        fence.close()
        assert shop.orders() == ["lamp"]


def refused(shop: Shop, broker: EmbeddedBroker, engine: sa.Engine) -> None:
    """A fence on this engine takes no sessions of the shop's."""
    with (
        TransactionProducer(broker.endpoint, "shop", TransactionFence(engine)) as producer,
        Session(shop.engine) as own,
        pytest.raises(ConfigurationError, match="is a copy of the one that"),
        producer.transaction(own),
    ):
        raise AssertionError
    engine.dispose()


def test_another_schema_of_the_same_server(shop: Shop, broker: EmbeddedBroker, topic: str) -> None:
    if shop.kind != "postgresql":
        pytest.skip("the copies of other servers are other databases already")
    TransactionFence(shop.engine).create_tables()
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA old")
        connection.exec_driver_sql("CREATE TABLE old.halfmq_fence AS SELECT * FROM halfmq_fence")
        connection.exec_driver_sql("ALTER TABLE old.halfmq_fence ADD PRIMARY KEY (transaction_id)")
    engine = sa.create_engine(shop.url, connect_args={"options": "-c search_path=old"})
    refused(shop, broker, engine)


def test_sessions_that_only_read_cannot_answer(shop: Shop, broker: EmbeddedBroker) -> None:
    if shop.kind != "postgresql":
        pytest.skip("a standby of PostgreSQL refuses the INSERT; others are told by the lock")
    TransactionFence(shop.engine).create_tables()
    engine = sa.create_engine(shop.url, connect_args={"options": "-c default_transaction_read_only=on"})
    refused(shop, broker, engine)


def test_django(shop: Shop, copy: Shop, alias: str, broker: EmbeddedBroker, topic: str) -> None:
    from django.db import connections

    with (
        TransactionProducer(broker.endpoint, "shop", TransactionFence(copy.engine)) as producer,
        pytest.raises(ConfigurationError, match="is a copy of the one that"),
        producer.transaction(connections[alias]),
    ):
        write_by_django(alias, "lamp")
    for given in (shop.engine, connections[alias]):
        group = f"shop-{time.monotonic_ns()}"
        with (
            TransactionProducer(broker.endpoint, group, TransactionFence(given)) as producer,
            producer.transaction(connections[alias]) as tx,
        ):
            write_by_django(alias, f"lamp {given!r}"[:200])
            tx.send(topic, "lamp")
    assert len(shop.orders()) == 2


async def test_asyncio(shop: Shop, copy: Shop, broker: EmbeddedBroker, topic: str) -> None:
    async with contextlib.AsyncExitStack() as used:
        engines = [create_async_engine(url) for url in (shop.async_url, copy.async_url, shop.async_url)]
        for engine in engines:
            used.push_async_callback(engine.dispose)
        own, other, again = engines
        fence = AsyncTransactionFence(other)
        async with AsyncTransactionProducer(broker.endpoint, "shop", fence) as producer, AsyncSession(own) as session:
            with pytest.raises(ConfigurationError, match="is a copy of the one that"):
                async with producer.transaction(session):
                    raise AssertionError
        for number, given in enumerate((own, again)):
            fence = AsyncTransactionFence(given)
            group = f"shop-{time.monotonic_ns()}"
            async with AsyncTransactionProducer(broker.endpoint, group, fence) as producer:
                for content in ("lamp", "chair"):
                    async with AsyncSession(own) as session, producer.transaction(session) as tx:
                        await session.execute(ORDER, {"content": f"{content} {number}"})
                        await tx.send(topic, content)
    assert shop.orders() == ["chair 0", "chair 1", "lamp 0", "lamp 1"]
