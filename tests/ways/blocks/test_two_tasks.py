"""Two tasks that use one AsyncSession at a time inside of a block: the block ends all the same, and leaves nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from client_core import uninterrupted
from client_core.local_database import transactions
from consumer_sdk.applied import AsyncAppliedMessages
from producer_sdk import AsyncTransactionProducer
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
