"""The outbox on SQLAlchemy's asyncio extension, with the drivers of each database."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from client_core.errors import LocalTransactionRefused
from producer_sdk import (
    AsyncTransactionProducer,
    ConfigurationError,
    LocalTransactionEnded,
    LocalTransactionState,
    Message,
    RequestRefused,
    TransactionProducer,
    TransactionState,
)
from producer_sdk.outbox import AsyncOutbox, BrokerTarget, Outbox, OutboxState
from ways.outbox.conftest import QUICK
from ways.shops import ORDER, texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.embedded import EmbeddedBroker
    from ways.shops import Shop


@pytest.fixture
async def engine(shop: Shop) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(shop.async_url)
    yield made
    await made.dispose()


@pytest.fixture
async def box(engine: AsyncEngine) -> AsyncOutbox:
    made = AsyncOutbox(engine, settings=QUICK)
    await made.create_tables()
    return made


@pytest.fixture
async def producer(broker: EmbeddedBroker, box: AsyncOutbox) -> AsyncIterator[AsyncTransactionProducer]:
    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", box) as made:
        yield made


async def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def agree(shop: Shop, box: AsyncOutbox, broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    async def is_empty() -> bool:
        return not (await box.status()).counts

    await until(is_empty)
    assert shop.orders() == await asyncio.to_thread(texts, broker.endpoint, topic) == expected


@pytest.mark.parametrize("form", ["session", "connection", "engine"])
async def test_its_end_commits_both_or_neither(
    shop: Shop,
    engine: AsyncEngine,
    box: AsyncOutbox,
    producer: AsyncTransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
    form: str,
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
        async with producer.transaction(given) as tx:
            await tx.send(topic, "sofa")
            await tx.rollback("no")
            with pytest.raises(RequestRefused, match="is over"):
                await tx.send(topic, "late")

    if form == "engine":
        await blocks(engine)
    elif form == "session":
        async with AsyncSession(engine) as session:
            await blocks(session)
    else:
        async with engine.connect() as connection:
            await blocks(connection)
    await agree(shop, box, broker, topic, ["lamp"])


async def test_a_cancelled_block_rolls_back(
    shop: Shop,
    engine: AsyncEngine,
    box: AsyncOutbox,
    producer: AsyncTransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            await session.execute(ORDER, {"content": "lamp"})
            await tx.send(topic, "lamp")
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agree(shop, box, broker, topic, [])


async def test_the_transaction_was_ended_inside(
    shop: Shop,
    engine: AsyncEngine,
    box: AsyncOutbox,
    producer: AsyncTransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
) -> None:
    async with AsyncSession(engine) as session:
        with pytest.raises(LocalTransactionEnded):
            async with producer.transaction(session) as tx:
                await session.execute(ORDER, {"content": "lamp"})
                await tx.send(topic, "lamp")
                await session.commit()
                await session.execute(ORDER, {"content": "chair"})
    await agree(shop, box, broker, topic, ["lamp"])


async def test_puts_and_variants(shop: Shop, engine: AsyncEngine, broker: EmbeddedBroker, topic: str) -> None:
    async def decide(message: Message) -> LocalTransactionState:
        await asyncio.sleep(0)
        return LocalTransactionState.COMMIT if message.text == "wait" else LocalTransactionState.ROLLBACK

    box = AsyncOutbox(engine, decide=decide, settings=replace(QUICK))
    await box.create_tables()
    announced = await box.announce(Message(topic, "announced"))
    late = await box.announce(Message(topic, "late"), decide_after=0.05)
    cancelled = await box.announce(Message(topic, "cancelled"))
    assert await box.cancel(cancelled, "why") is True
    target = BrokerTarget(broker.endpoint)
    relay = await box.relay(target)
    relay.start()
    async with AsyncSession(engine) as session:
        await session.execute(ORDER, {"content": "put"})
        await box.put(session, Message(topic, "put"))
        await box.put(session, Message(topic, "wait"), decide_after=0.05)
        await box.confirm(session, announced)
        await session.commit()
        await box.put(session, Message(topic, "never"))
        await session.rollback()

    async def is_done() -> bool:
        return set((await box.status()).counts) == {OutboxState.LOCAL_ROLLBACK}

    await until(is_done)
    async with AsyncSession(engine) as session:
        with pytest.raises(LocalTransactionRefused):
            await box.confirm(session, late)
    await asyncio.to_thread(relay.stop)
    await asyncio.to_thread(target.close)
    assert await asyncio.to_thread(texts, broker.endpoint, topic) == ["announced", "put", "wait"]


async def test_the_listeners_form_takes_a_coroutine_function(
    shop: Shop, box: AsyncOutbox, producer: AsyncTransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    async def change(connection: AsyncConnection) -> None:
        await connection.execute(ORDER, {"content": "lamp"})

    sent = await producer.send_in_transaction(Message(topic, "lamp"), arg=change)
    assert sent.state is TransactionState.COMMITTED
    failed = await producer.send_in_transaction(Message(topic, "lamp again"), arg=change)
    assert isinstance(failed.local_error, IntegrityError)
    await agree(shop, box, broker, topic, ["lamp"])


async def test_the_listeners_form_has_the_error_of_a_database_that_does_not_answer(
    shop: Shop, broker: EmbeddedBroker
) -> None:
    async def change(connection: AsyncConnection) -> None:
        pytest.fail("it was called")

    engine = create_async_engine(shop.unreachable(shop.async_url))
    async with AsyncTransactionProducer(broker.endpoint, "shop", AsyncOutbox(engine, settings=QUICK)) as producer:
        sent = await producer.send_in_transaction(Message("orders", "lamp"), arg=change)
    assert isinstance(sent.local_error, OperationalError | OSError)
    assert sent.state is not TransactionState.COMMITTED
    await engine.dispose()


async def test_forms_are_not_mixed(
    shop: Shop, engine: AsyncEngine, box: AsyncOutbox, producer: AsyncTransactionProducer
) -> None:
    with pytest.raises(ConfigurationError, match="AsyncOutbox"):
        AsyncTransactionProducer("localhost:1", "shop", Outbox(shop.engine))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="AsyncTransactionProducer"):
        TransactionProducer("localhost:1", "shop", box)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="AsyncEngine of SQLAlchemy"):
        AsyncOutbox(shop.engine)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="joins a local transaction"):
        producer.transaction()
    with pytest.raises(ConfigurationError, match="has no transaction"):
        await box.put(engine, Message("orders", "x"))


async def test_what_commits_by_itself_is_refused(engine: AsyncEngine, box: AsyncOutbox) -> None:
    alone = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with alone.connect() as connection:
        with pytest.raises(ConfigurationError, match="autocommit"):
            await box.put(connection, Message("orders", "x"))
    assert (await box.status()).counts == {}
