"""The block on SQLAlchemy's asyncio extension, with the drivers of each database."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from client_core.ids import new_id
from producer_sdk import (
    AsyncTransactionProducer,
    ConfigurationError,
    HalfMessages,
    LocalTransactionEnded,
    LocalTransactionState,
    Message,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.fence import AsyncTransactionFence, FenceSettings, TransactionFence
from ways.shops import ORDER, texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncConnection

    from broker.embedded import EmbeddedBroker
    from client_core.local_database import LocalTransaction
    from ways.shops import Shop


@pytest.fixture
async def engine(shop: Shop) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(shop.async_url)
    yield made
    await made.dispose()


@pytest.fixture
async def fence(engine: AsyncEngine) -> AsyncTransactionFence:
    made = AsyncTransactionFence(engine, settings=FenceSettings(wait=1.0))
    await made.create_tables()
    return made


@pytest.fixture
async def producer(broker: EmbeddedBroker, fence: AsyncTransactionFence) -> AsyncIterator[AsyncTransactionProducer]:
    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


@pytest.mark.parametrize("form", ["session", "connection", "engine"])
async def test_its_end_commits_both_or_neither(
    shop: Shop, engine: AsyncEngine, producer: AsyncTransactionProducer, broker: EmbeddedBroker, topic: str, form: str
) -> None:
    async def blocks(given: AsyncSession | AsyncConnection | AsyncEngine) -> None:
        async with producer.transaction(given) as tx:
            await tx.connection.execute(ORDER, {"content": "lamp"})
            await tx.send(topic, "lamp")
        assert tx.result is not None
        assert tx.result.state is TransactionState.COMMITTED
        with pytest.raises(KeyError):
            async with producer.transaction(given) as tx:
                await tx.connection.execute(ORDER, {"content": "yacht"})
                await tx.send(topic, "yacht")
                raise KeyError
        assert tx.result is not None
        assert tx.result.state is TransactionState.ROLLED_BACK
        with pytest.raises(IntegrityError):
            async with producer.transaction(given) as tx:
                await tx.send(topic, "lamp again")
                await tx.connection.execute(ORDER, {"content": "lamp"})
        async with producer.transaction(given) as tx:
            await tx.send(topic, "chair")
            await tx.connection.execute(ORDER, {"content": "chair"})
            await tx.rollback()

    if form == "session":
        async with AsyncSession(engine) as session:
            await blocks(session)
    elif form == "connection":
        async with engine.connect() as connection:
            await blocks(connection)
    else:
        await blocks(engine)
    assert shop.orders() == await asyncio.to_thread(texts, broker.endpoint, topic) == ["lamp"]
    deadline = time.monotonic() + 30
    while shop.fences():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_the_transaction_was_ended_inside(
    shop: Shop, engine: AsyncEngine, producer: AsyncTransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    async with AsyncSession(engine) as session:
        with pytest.raises(LocalTransactionEnded):
            async with producer.transaction(session) as tx:
                await tx.send(topic, "lamp")
                await session.execute(ORDER, {"content": "lamp"})
                await session.commit()
                await session.execute(ORDER, {"content": "chair"})
    assert shop.orders() == await asyncio.to_thread(texts, broker.endpoint, topic) == ["lamp"]


async def test_a_task_is_cancelled_inside(
    shop: Shop, engine: AsyncEngine, producer: AsyncTransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    async def block(written: asyncio.Event) -> None:
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            await tx.send(topic, "lamp")
            await session.execute(ORDER, {"content": "lamp"})
            written.set()
            await asyncio.sleep(60)

    written = asyncio.Event()
    task = asyncio.create_task(block(written))
    await written.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert shop.orders() == await asyncio.to_thread(texts, broker.endpoint, topic) == []


async def test_checks_are_exact(shop: Shop, engine: AsyncEngine, fence: AsyncTransactionFence) -> None:
    async def check(own: str) -> LocalTransactionState:
        return await fence.check_local_transaction(HalfMessages(own, ()))

    never, own = new_id(), new_id()
    assert await check(never) is LocalTransactionState.ROLLBACK
    async with AsyncSession(engine) as session:
        from client_core.local_database import join_async

        joined = join_async(session)
        await fence.identity()

        def begin(local: LocalTransaction) -> None:
            local.begin()
            fence.put(local, own)

        await joined.run(begin)
        assert await check(own) is LocalTransactionState.UNKNOWN
        await session.execute(ORDER, {"content": "lamp"})
        await session.commit()
    assert await check(own) is LocalTransactionState.COMMIT
    assert shop.orders() == ["lamp"]


async def test_the_listeners_form_takes_a_coroutine_function(
    shop: Shop, producer: AsyncTransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    async def change(connection: AsyncConnection) -> None:
        await connection.execute(ORDER, {"content": "lamp"})

    sent = await producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    assert sent.state is TransactionState.COMMITTED
    assert shop.orders() == await asyncio.to_thread(texts, broker.endpoint, topic) == ["lamp"]


async def test_forms_are_not_mixed(
    shop: Shop, engine: AsyncEngine, fence: AsyncTransactionFence, producer: AsyncTransactionProducer
) -> None:
    with pytest.raises(ConfigurationError, match="AsyncTransactionFence"):
        AsyncTransactionProducer("localhost:1", "shop", TransactionFence(shop.engine))
    with pytest.raises(ConfigurationError, match="AsyncTransactionProducer"):
        TransactionProducer("localhost:1", "shop", fence)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="AsyncTransactionFence"):
        TransactionFence(engine)
    with pytest.raises(ConfigurationError, match="AsyncEngine of SQLAlchemy"):
        AsyncTransactionFence(shop.engine)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="what blocks goes to a TransactionProducer"):
        producer.transaction(sa.orm.Session(shop.engine))
