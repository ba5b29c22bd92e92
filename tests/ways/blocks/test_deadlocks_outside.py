"""Messages and marks in transactions of the user's own, which the server rolls back after a deadlock; it is caught."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from consumer_sdk.applied import AppliedMessages
from producer_sdk import LocalTransactionEnded, Message
from producer_sdk.outbox import AsyncOutbox, Outbox
from ways.deliveries import delivered
from ways.shops import ORDER, Shop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# SQLite has no deadlocks, and PostgreSQL refuses what follows by itself.
pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@pytest.fixture
def stock(shop: Shop) -> Shop:
    """A shop with two rows to fight over."""
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE stock (item INT PRIMARY KEY, count INT)")
        connection.exec_driver_sql("INSERT INTO stock VALUES (1, 1), (2, 2)")
        connection.exec_driver_sql("CREATE TABLE much (number INT)")
    return shop


@pytest.fixture
def outbox(shop: Shop) -> Outbox:
    made = Outbox(shop.engine, relay=False)
    made.create_tables()
    return made


@contextlib.contextmanager
def opponent(shop: Shop, holds: threading.Event) -> Iterator[None]:
    """Another transaction, which has changed more: of two in a deadlock the server ends the other one."""

    def run() -> None:
        with shop.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO much VALUES " + ", ".join(f"({each})" for each in range(500)))
            connection.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 2")
            holds.set()
            connection.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 1")

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(30)


def deadlock(shop: Shop, run: Callable[[str], Any]) -> None:
    """The transaction of `run` is rolled back by the server, and its program takes no notice."""
    run("UPDATE stock SET count = 9 WHERE item = 1")
    holds = threading.Event()
    with opponent(shop, holds):
        assert holds.wait(30)
        time.sleep(0.2)
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            run("UPDATE stock SET count = 9 WHERE item = 2")


def run_on(session: Session) -> Callable[[str], Any]:
    return lambda sql: session.execute(sa.text(sql))


def test_a_message_after_it_is_refused(stock: Shop, outbox: Outbox) -> None:
    with Session(stock.engine) as session:
        session.execute(ORDER, {"content": "lamp"})
        deadlock(stock, run_on(session))
        with pytest.raises(LocalTransactionEnded, match=r"rolled the whole transaction back.*1213"):
            outbox.put(session, Message("orders", "lamp"))
        session.rollback()
        # As the error says: all of it again.
        session.execute(ORDER, {"content": "lamp"})
        outbox.put(session, Message("orders", "lamp"))
        session.commit()
    assert stock.orders() == ["lamp"]
    assert sum(outbox.status().counts.values()) == 1


def test_what_is_committed_after_it_without_its_message_is_refused(stock: Shop, outbox: Outbox) -> None:
    with stock.engine.connect() as connection:
        outbox.put(connection, Message("orders", "lamp"))
        deadlock(stock, connection.exec_driver_sql)
        connection.execute(ORDER, {"content": "lamp"})
        with pytest.raises(LocalTransactionEnded):
            connection.commit()
        connection.rollback()
        connection.execute(ORDER, {"content": "desk"})
        outbox.put(connection, Message("orders", "desk"))
        connection.commit()
    assert stock.orders() == ["desk"]
    assert sum(outbox.status().counts.values()) == 1


def test_an_effect_without_its_mark_is_refused(stock: Shop) -> None:
    applied = AppliedMessages(stock.engine, "accounts")
    applied.create_tables()
    message = delivered(dedup_key="7")
    with pytest.raises(LocalTransactionEnded), Session(stock.engine) as session, session.begin():
        assert applied.mark(session, message)
        deadlock(stock, run_on(session))
        session.execute(ORDER, {"content": "lamp"})
    assert stock.orders() == []
    with Session(stock.engine) as session, session.begin():
        assert applied.mark(session, message)
        session.execute(ORDER, {"content": "lamp"})
    assert stock.orders() == ["lamp"]


def test_a_wait_for_a_lock_ends_one_statement_only(stock: Shop, outbox: Outbox) -> None:
    """Unless the server is set otherwise, innodb_rollback_on_timeout."""
    with stock.engine.connect() as other, Session(stock.engine) as session:
        other.exec_driver_sql("UPDATE stock SET count = 0 WHERE item = 1")
        session.execute(sa.text("SET SESSION innodb_lock_wait_timeout = 1"))
        session.execute(ORDER, {"content": "lamp"})
        outbox.put(session, Message("orders", "lamp"))
        with pytest.raises(sa.exc.OperationalError, match="1205"):
            session.execute(sa.text("UPDATE stock SET count = 9 WHERE item = 1"))
        session.execute(ORDER, {"content": "desk"})
        outbox.put(session, Message("orders", "desk"))
        session.commit()
    assert stock.orders() == ["desk", "lamp"]
    assert sum(outbox.status().counts.values()) == 2


async def test_on_asyncio(stock: Shop) -> None:
    engine = create_async_engine(stock.async_url)
    outbox = AsyncOutbox(engine, relay=False)
    await outbox.create_tables()
    async with AsyncSession(engine) as session:
        await session.execute(ORDER, {"content": "lamp"})
        await session.run_sync(lambda sync: deadlock(stock, run_on(sync)))
        with pytest.raises(LocalTransactionEnded):
            await outbox.put(session, Message("orders", "lamp"))
        await session.rollback()
        await session.execute(ORDER, {"content": "lamp"})
        await outbox.put(session, Message("orders", "lamp"))
        await session.commit()
    await engine.dispose()
    assert stock.orders() == ["lamp"]
