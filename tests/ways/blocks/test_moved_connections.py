"""Connections of a pool that somebody left in another schema, with tables of halfmq's of its own (MySQL, MariaDB)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from client_core.local_database import local_database
from consumer_sdk.applied import AppliedMessages, AsyncAppliedMessages
from halfmq_connect.reconciliation.business import BusinessTable
from producer_sdk import ConfigurationError, Message, TransactionProducer
from producer_sdk.outbox import AsyncOutbox, Outbox, OutboxState
from support.databases import create_database, drop_database, server_url
from ways.deliveries import delivered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture
def other(shop: Shop) -> Iterator[sa.Engine]:
    """Another schema on the same server."""
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("elsewhere a URL does not name the schema")
    url = create_database(server_url(shop.kind))
    engine = sa.create_engine(url)
    AppliedMessages(engine, "accounts").create_tables()
    Outbox(engine).create_tables()
    yield engine
    engine.dispose()
    drop_database(url)


def moved(shop: Shop, other: sa.Engine) -> sa.Engine:
    """The shop's engine, whose connections are all in the other schema when a block begins."""
    engine = sa.create_engine(shop.url, pool_size=3)
    sa.event.listen(engine, "checkout", lambda connection, *_: connection.cursor().execute(f"USE {other.url.database}"))
    return engine


def count(engine: sa.Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar_one())


def test_marks_are_where_the_url_says(shop: Shop, other: sa.Engine) -> None:
    engine = moved(shop, other)
    usual = AppliedMessages(shop.engine, "accounts")
    usual.create_tables()
    strange = AppliedMessages(engine, "accounts")
    strange.create_tables()
    message = delivered(dedup_key="7")
    with usual.once(shop.engine, message) as is_first:
        assert is_first
    for given in (engine, shop.engine):
        with strange.once(given, message) as is_first:
            assert not is_first
    handled: list[object] = []
    strange.handler(lambda *each: handled.append(each))(message)
    assert handled == []
    assert (count(shop.engine, "halfmq_applied"), count(other, "halfmq_applied")) == (1, 0)
    with Session(engine) as session, session.begin():
        assert strange.mark(session, delivered(dedup_key="8"))
    assert (count(shop.engine, "halfmq_applied"), count(other, "halfmq_applied")) == (2, 0)
    engine.dispose()


def test_messages_are_in_the_outbox_that_is_relayed(
    shop: Shop, other: sa.Engine, broker: EmbeddedBroker, topic: str
) -> None:
    engine = moved(shop, other)
    outbox = Outbox(engine, relay=False)
    outbox.create_tables()
    with Session(engine) as session, session.begin():
        outbox.put(session, Message(topic, "lamp"))
    with TransactionProducer(broker.endpoint, "shop", outbox) as producer, Session(engine) as session:
        with producer.transaction(session) as tx:
            tx.send(topic, "desk")
            session.connection().exec_driver_sql("USE information_schema")
            tx.send(topic, "sofa")
        for each in (shop.engine, other):
            with Session(each) as usual, producer.transaction(usual) as tx:
                tx.send(topic, "chair")
    announced = outbox.announce(Message(topic, "bed"), decide_after=timedelta(hours=1))
    assert outbox.status().counts == {OutboxState.LOCAL_COMMIT: 5, OutboxState.UNKNOWN: 1}
    assert outbox.cancel(announced)
    assert (count(shop.engine, "halfmq_outbox"), count(other, "halfmq_outbox")) == (6, 0)
    engine.dispose()


async def test_asyncio(shop: Shop, other: sa.Engine, topic: str) -> None:
    engine = create_async_engine(shop.async_url)
    sa.event.listen(
        engine.sync_engine, "checkout", lambda connection, *_: connection.cursor().execute(f"USE {other.url.database}")
    )
    outbox, applied = AsyncOutbox(engine, relay=False), AsyncAppliedMessages(engine, "accounts")
    await outbox.create_tables()
    await applied.create_tables()
    async with AsyncSession(engine) as session:
        async with applied.once(session, delivered(dedup_key="7")) as is_first:
            assert is_first
        async with session.begin():
            await outbox.put(session, Message(topic, "lamp"))
    await engine.dispose()
    for table in ("halfmq_applied", "halfmq_outbox"):
        assert (count(shop.engine, table), count(other, table)) == (1, 0)


@pytest.mark.parametrize("name", ["halfmq test é-ü", "HALFMQ_test_$1", "halfmq.test"])
def test_schemas_with_odd_names(shop: Shop, other: sa.Engine, topic: str, name: str) -> None:
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE IF NOT EXISTS `{name}`")
    url = shop.engine.url.set(database=name)
    engine = sa.create_engine(url)
    sa.event.listen(engine, "checkout", lambda connection, *_: connection.cursor().execute(f"USE {other.url.database}"))
    try:
        outbox, applied = Outbox(engine, relay=False), AppliedMessages(engine, "accounts")
        outbox.create_tables()
        applied.create_tables()
        with Session(engine) as session, session.begin():
            outbox.put(session, Message(topic, "lamp"))
            assert applied.mark(session, delivered(dedup_key="7"))
        assert sum(outbox.status().counts.values()) == 1
        for table in ("halfmq_applied", "halfmq_outbox"):
            assert (count(engine, f"`{name}`.{table}"), count(other, table)) == (1, 0)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"DROP DATABASE `{name}`")
        engine.dispose()


def test_reconciliation_reads_the_business_table_where_the_url_says(
    shop: Shop, other: sa.Engine, broker: EmbeddedBroker, topic: str
) -> None:
    for engine in (shop.engine, other):
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE sales (id VARCHAR(9) PRIMARY KEY, created_at BIGINT NOT NULL)")
            connection.exec_driver_sql(f"INSERT INTO sales VALUES ('{engine.url.database[-6:]}', 1000)")
    table = BusinessTable("sales", time_unit="s")
    database = local_database(moved(shop, other))
    start = datetime(1970, 1, 1, tzinfo=UTC)
    (page,) = table.rows(database, start, start + timedelta(hours=1))
    assert [row.key for row in page] == [str(shop.engine.url.database)[-6:]]


def test_reconciliation_reads_only_what_is_committed(shop: Shop, other: sa.Engine) -> None:
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    database = local_database(engine)
    with pytest.raises(ConfigurationError, match="READ UNCOMMITTED"), database.reading():
        raise AssertionError
    with database.reading() as local:
        assert local.fetch("SELECT 1") == [(1,)]
    engine.dispose()
