"""Connections of a pool that somebody left at READ UNCOMMITTED, or in another character set (MySQL, MariaDB)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from client_core.ids import new_id
from client_core.local_database import join
from producer_sdk import ConfigurationError, HalfMessages, LocalTransactionState, Message, TransactionProducer
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from producer_sdk.outbox import Outbox, RelaySettings
from ways.shops import texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop

DIRTY = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"


@pytest.fixture(autouse=True)
def _servers_with_sessions(shop: Shop) -> None:
    if shop.kind not in {"mysql", "mariadb"}:
        pytest.skip("the others read nothing that is not committed, and have one character set")


def leave(engine: sa.Engine, *statements: str) -> None:
    """Leaves the pool's only connection behind as a user might."""
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def test_checks_do_not_answer_from_them(shop: Shop) -> None:
    engine = sa.create_engine(shop.url, pool_size=1, max_overflow=0)
    fence = TransactionFence(engine)
    fence.create_tables()
    own = new_id()
    with shop.engine.connect() as connection:
        local = join(connection)
        local.begin()
        fence.put(local, own)
        leave(engine, DIRTY)
        with pytest.raises(ConfigurationError, match="READ UNCOMMITTED") as raised:
            fence.check_local_transaction(HalfMessages(own, ()))
        assert raised.value.field == "database"
        # That one is not used again.
        assert fence.check_local_transaction(HalfMessages(own, ())) is LocalTransactionState.UNKNOWN
        local.rollback()
    assert fence.check_local_transaction(HalfMessages(own, ())) is LocalTransactionState.ROLLBACK
    engine.dispose()


async def test_checks_on_asyncio(shop: Shop) -> None:
    engine = create_async_engine(shop.async_url, pool_size=1, max_overflow=0)
    fence = AsyncTransactionFence(engine)
    await fence.create_tables()
    async with engine.connect() as connection:
        await connection.exec_driver_sql(DIRTY)
    half = HalfMessages(new_id(), ())
    with pytest.raises(ConfigurationError, match="READ UNCOMMITTED"):
        await fence.check_local_transaction(half)
    assert await fence.check_local_transaction(half) is LocalTransactionState.ROLLBACK
    await engine.dispose()


@pytest.mark.parametrize("statement", [DIRTY, "SET character_set_results = 'latin1'"])
def test_relays_take_another_one(shop: Shop, broker: EmbeddedBroker, topic: str, statement: str) -> None:
    engine = sa.create_engine(shop.url.replace("pymysql", "mysqldb"), pool_size=1, max_overflow=1)
    outbox = Outbox(engine, settings=RelaySettings(poll=0.05, first_backoff=0.05))
    outbox.create_tables()
    leave(engine, statement)
    usual = Outbox(shop.engine)
    with shop.engine.connect() as open_one:
        transaction = open_one.begin()
        usual.put(open_one, Message(topic, "of nobody"))
        with TransactionProducer(broker.endpoint, "shop", outbox):
            with shop.engine.begin() as connection:
                usual.put(connection, Message(topic, "lamp", message_group="für später"))
            deadline = time.monotonic() + 30
            while "lamp" not in texts(broker.endpoint, topic):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            transaction.rollback()
    assert texts(broker.endpoint, topic) == ["lamp"]
    engine.dispose()
