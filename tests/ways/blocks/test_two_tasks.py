"""Tasks of a block on asyncio: two on one AsyncSession at a time, and calls that nobody awaits."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from client_core import uninterrupted
from client_core.local_database import transactions
from consumer_sdk.applied import AsyncAppliedMessages
from producer_sdk import AsyncTransactionProducer, ConfigurationError, Message
from producer_sdk.fence import AsyncTransactionFence
from producer_sdk.outbox import AsyncOutbox
from ways.deliveries import delivered
from ways.shops import ORDER, Shop, texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker

SLOW = {"mysql": "SELECT SLEEP(1)", "mariadb": "SELECT SLEEP(1)", "postgresql": "SELECT pg_sleep(1)"}
ROUNDS = 4
"""Which task's answer is lost depends on the order in which the event loop wakes them."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "END_WITHIN", 2.0)
    monkeypatch.setattr(uninterrupted, "_GRACE", 0.1)


@pytest.mark.parametrize("way", ["fence", "outbox"])
async def test_two_blocks_that_begin_at_a_time_on_one_session(
    shop: Shop, broker: EmbeddedBroker, topic: str, way: str
) -> None:
    """One of them has the transaction: the other one is refused at its door, however the event loop wakes them."""
    engine = create_async_engine(shop.async_url)
    keeper = AsyncTransactionFence(engine) if way == "fence" else AsyncOutbox(engine)
    await keeper.create_tables()

    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", keeper) as producer:

        async def place(session: AsyncSession, content: str, turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            async with producer.transaction(session) as tx:
                await session.execute(ORDER, {"content": content})
                await tx.send(topic, content)

        placed = []
        for number in range(10):
            async with AsyncSession(engine) as session:
                names = [f"{number} {each}" for each in ("lamp", "chair")]
                ends = await asyncio.gather(
                    place(session, names[0], 0), place(session, names[1], number), return_exceptions=True
                )
                placed += [name for name, end in zip(names, ends, strict=True) if end is None]
                for end in ends:
                    assert end is None or (isinstance(end, ConfigurationError) and "another block" in str(end)), end
    await engine.dispose()
    assert len(placed) >= 10
    assert shop.orders() == sorted(placed)
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != sorted(placed):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", ["fence", "outbox"])
async def test_a_message_that_is_still_sent_by_a_task_when_its_block_is_cancelled(
    shop: Shop, broker: EmbeddedBroker, topic: str, way: str
) -> None:
    """It ends with the block: it does not go on with another connection, and no connection stays away."""
    engine = create_async_engine(shop.async_url, pool_size=2, max_overflow=2)
    keeper = AsyncTransactionFence(engine) if way == "fence" else AsyncOutbox(engine)
    await keeper.create_tables()
    turn = random.Random(7)

    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", keeper) as producer:

        async def place(content: str, turns: int) -> None:
            async with AsyncSession(engine) as session, producer.transaction(session) as tx:
                await session.execute(ORDER, {"content": content})
                sending = asyncio.create_task(tx.send(topic, content))
                sending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                for _ in range(turns):
                    await asyncio.sleep(0)

        for number in range(40):
            placing = asyncio.create_task(place(f"{number:02}", turn.randrange(12)))
            for _ in range(2):
                await asyncio.sleep(turn.random() * 0.01)
                placing.cancel()
            done, _ = await asyncio.wait({placing}, timeout=30)
            assert done
            placing.cancelled() or placing.exception()
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            await session.execute(ORDER, {"content": "last"})
            await tx.send(topic, "last")
        # The producer answers checks of those whose verdict was cancelled.
        deadline = time.monotonic() + 30
        while (found := await asyncio.to_thread(texts, broker.endpoint, topic)) != (orders := shop.orders()):
            assert time.monotonic() < deadline, (orders, found)
            await asyncio.sleep(0.05)
    await engine.dispose()
    assert "last" in orders


@pytest.mark.parametrize("way", ["fence", "outbox"])
@pytest.mark.parametrize("forgotten", ["send", "send_many", "rollback"])
async def test_a_call_that_is_not_awaited(
    shop: Shop, broker: EmbeddedBroker, topic: str, way: str, forgotten: str
) -> None:
    """Nothing of the block is committed, and the next one goes on."""
    engine = create_async_engine(shop.async_url)
    keeper = AsyncTransactionFence(engine) if way == "fence" else AsyncOutbox(engine)
    await keeper.create_tables()
    asked = {
        "send": lambda tx: tx.send(topic, "chair"),
        "send_many": lambda tx: tx.send_many([Message(topic, "chair")]),
        "rollback": lambda tx: tx.rollback("sold out"),
    }[forgotten]
    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", keeper) as producer:
        session = AsyncSession(engine)
        async with session:
            with pytest.raises(RuntimeError, match=rf"await tx.{forgotten}\("):
                async with producer.transaction(session) as tx:
                    await session.execute(ORDER, {"content": "lamp"})
                    await tx.send(topic, "lamp")
                    left = asked(tx)
            left.close()
            async with producer.transaction(session) as tx:
                await session.execute(ORDER, {"content": "desk"})
                sent = [asyncio.create_task(tx.send(topic, f"desk {number}")) for number in range(3)]
                await asyncio.gather(*sent)
    await engine.dispose()
    assert shop.orders() == ["desk"]
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != ["desk 0", "desk 1", "desk 2"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("way", ["fence", "outbox", "applied"])
async def test_a_block_ends_where_a_task_still_waits_for_its_answer(
    shop: Shop, broker: EmbeddedBroker, topic: str, way: str
) -> None:
    if shop.kind == "sqlite":
        pytest.skip("its statements run one after the other in a thread")
    engine = create_async_engine(shop.async_url)
    keeper = {"fence": AsyncTransactionFence, "outbox": AsyncOutbox}.get(way, AsyncTransactionFence)(engine)
    applied = AsyncAppliedMessages(engine, "accounts", key=lambda message: message.text)
    await keeper.create_tables()
    await applied.create_tables()
    slow, wrong = sa.text(SLOW[shop.kind]), sa.text("SELECT no_such_column")

    async def both(session: AsyncSession) -> None:
        await session.execute(ORDER, {"content": "lamp"})
        await asyncio.gather(session.execute(wrong), session.execute(slow))

    async with AsyncTransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", keeper) as producer:
        for number in range(ROUNDS):
            with pytest.raises(DBAPIError, match="no_such_column"):
                async with AsyncSession(engine) as session:
                    if way == "applied":
                        async with applied.once(session, delivered(f"lamp {number}")):
                            await both(session)
                    else:
                        async with producer.transaction(session) as tx:
                            await tx.send(topic, "lamp")
                            await both(session)
        # No connection of the pool has a transaction that is open.
        async with AsyncSession(engine) as session, producer.transaction(session) as tx:
            await session.execute(ORDER, {"content": "chair"})
            await tx.send(topic, "chair")
    await engine.dispose()
    assert shop.orders() == ["chair"]
    deadline = time.monotonic() + 30
    while texts(broker.endpoint, topic) != ["chair"]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
