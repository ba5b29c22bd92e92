"""Connections of a pool that somebody left in another schema: checks and clean-up do not answer from its table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from client_core.ids import new_id
from client_core.local_database import join
from producer_sdk import ConfigurationError, HalfMessages, LocalTransactionState
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from producer_sdk.fence.rows import id_of_age
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ways.shops import Shop


@pytest.fixture
def other(shop: Shop) -> Iterator[str]:
    """Another schema on the same server, with a fence of its own."""
    if shop.kind == "sqlite":
        pytest.skip("its connections have one file")
    if shop.kind == "postgresql":
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("CREATE SCHEMA other")
        fence = TransactionFence(shop.engine, table="other.halfmq_fence")
        fence.create_tables()
        yield "other"
        return
    url = create_database(server_url(shop.kind))
    engine = sa.create_engine(url)
    TransactionFence(engine).create_tables()
    engine.dispose()
    yield str(sa.make_url(url).database)
    drop_database(url)


def move(shop: Shop, connection: sa.Connection, other: str) -> None:
    connection.exec_driver_sql(f"SET search_path = {other}" if shop.kind == "postgresql" else f"USE {other}")
    connection.commit()


def test_checks_find_the_right_table(shop: Shop, other: str) -> None:
    engine = sa.create_engine(shop.url, pool_size=2, max_overflow=0)
    fence = TransactionFence(engine)
    fence.create_tables()
    own = new_id()
    with engine.connect() as connection:
        local = join(connection)
        local.begin()
        fence.put(local, own)
        local.commit()
    with engine.connect() as one, engine.connect() as two:
        move(shop, one, other)
        move(shop, two, other)
    half = HalfMessages(own, ())
    # Each was given back to the pool, which does not look; those that a check finds are not used again.
    with pytest.raises(ConfigurationError, match="Name the table with its schema") as raised:
        fence.check_local_transaction(half)
    assert raised.value.field == "table"
    answer = None
    while answer is None:
        with contextlib.suppress(ConfigurationError):
            answer = fence.check_local_transaction(half)
    assert answer is LocalTransactionState.COMMIT
    engine.dispose()
    elsewhere = TransactionFence(shop.engine, table=f"{other}.halfmq_fence")
    with shop.engine.connect() as connection:
        assert elsewhere.rows.state(join(connection), own) is None


def test_clean_up_leaves_the_other_table_alone(shop: Shop, other: str) -> None:
    """Its rows are another service's: the broker here knows nothing of its transactions."""
    elsewhere = TransactionFence(shop.engine, table=f"{other}.halfmq_fence")
    old = f"{id_of_age(30 * 24 * 3600)[:-1]}1"
    with shop.engine.connect() as connection:
        local = join(connection)
        local.begin()
        local.execute(f"INSERT INTO {other}.halfmq_fence (transaction_id, state) VALUES (:id, 'committed')", id=old)
        local.commit()
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0)
    fence = TransactionFence(engine)
    fence.create_tables()
    with engine.connect() as connection:
        move(shop, connection, other)
    fence.attach(lambda transaction_id: None)
    assert fence.clean() == 0
    engine.dispose()
    with shop.engine.connect() as connection:
        assert elsewhere.rows.state(join(connection), old) == "committed"


async def test_checks_on_asyncio(shop: Shop, other: str) -> None:
    engine: AsyncEngine = create_async_engine(shop.async_url, pool_size=1, max_overflow=0)
    fence = AsyncTransactionFence(engine)
    await fence.create_tables()
    async with engine.connect() as connection:
        await connection.run_sync(lambda synchronous: move(shop, synchronous, other))
    half = HalfMessages(new_id(), ())
    with pytest.raises(ConfigurationError, match="Name the table with its schema"):
        await fence.check_local_transaction(half)
    assert await fence.check_local_transaction(half) is LocalTransactionState.ROLLBACK
    await engine.dispose()
