"""A local transaction that the block's own code ends: what is sent afterwards does not belong to it, and is refused."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from producer_sdk import AsyncTransactionProducer, LocalTransactionEnded, TransactionProducer, TransactionState
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from support.databases import in_ci
from ways.shops import FORMS, ORDER, OfDriver, Shop, Work, texts, write_by_django

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.embedded import EmbeddedBroker

MYSQL = {"mysql", "mariadb"}


@pytest.fixture
def fence(shop: Shop) -> TransactionFence:
    made = TransactionFence(shop.engine)
    made.create_tables()
    return made


@pytest.fixture
def producer(broker: EmbeddedBroker, fence: TransactionFence) -> Iterator[TransactionProducer]:
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", fence) as made:
        yield made


@pytest.fixture(params=[*FORMS, "mysqlclient"])
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    if request.param != "mysqlclient":
        with FORMS[request.param](shop) as made:
            yield made
        return
    if shop.kind not in MYSQL:
        pytest.skip("mysqlclient is a driver of MySQL and MariaDB")
    if not in_ci():
        pytest.importorskip("MySQLdb")
    with contextlib.closing(shop.connect_mysqlclient()) as connection:
        yield OfDriver(connection)


def soon(broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while (found := texts(broker.endpoint, topic)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def by_statement(work: Work, sql: str) -> None:
    """Behind the back of every library: by a cursor of the driver."""
    connection: Any = work.given
    if isinstance(connection, Session | scoped_session):
        connection = connection.connection()
    if isinstance(connection, sa.Connection):
        connection = connection.connection
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(sql)


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_what_is_sent_afterwards_is_refused(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, how: str, caught: bool
) -> None:
    with pytest.raises(LocalTransactionEnded), producer.transaction(work.given) as tx:
        work.write("first")
        tx.send(topic, "first")
        getattr(work, how)()
        # Some forms refuse this too.
        with contextlib.suppress(LocalTransactionEnded):
            work.write("second")
        with pytest.raises(LocalTransactionEnded, match="was not sent"):
            tx.send(topic, "second")
        if not caught:
            tx.send(topic, "second")
    assert tx.result is not None
    stands = ["first"] if how == "commit" else []
    assert tx.result.state is (TransactionState.COMMITTED if stands else TransactionState.ROLLED_BACK)
    with producer.transaction(work.given) as tx:
        work.write("third")
        tx.send(topic, "third")
    soon(broker, topic, [*stands, "third"])
    assert shop.orders() == [*stands, "third"]


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_first_message_after_it_is_refused(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str, how: str
) -> None:
    with pytest.raises(LocalTransactionEnded, match="was not sent"), producer.transaction(work.given) as tx:
        work.write("first")
        getattr(work, how)()
        tx.send(topic, "first")
    assert (shop.orders(), texts(broker.endpoint, topic)) == (["first"] if how == "commit" else [], [])


def test_a_commit_as_a_statement_of_the_driver(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """Refused where the driver's statements are seen; elsewhere what is sent afterwards is."""
    with contextlib.suppress(LocalTransactionEnded), producer.transaction(work.given) as tx:
        work.write("first")
        tx.send(topic, "first")
        by_statement(work, "COMMIT")
        if isinstance(work, OfDriver):
            work.write("second")
        tx.send(topic, "second")
    found = shop.orders()
    assert found in (["first"], [])
    with producer.transaction(work.given) as tx:
        work.write("third")
        tx.send(topic, "third")
    soon(broker, topic, [*found, "third"])


def test_messages_to_the_end_of_the_block(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """What is looked at for that disturbs nothing, the user's savepoints above all."""
    with producer.transaction(work.given) as tx:
        for number in range(4):
            tx.send(topic, f"{number}")
            by_statement(work, f"SAVEPOINT place{number}")
            work.write(f"{number}")
        tx.send(topic, "4")
        work.write("4")
        by_statement(work, "RELEASE SAVEPOINT place3")
        by_statement(work, "RELEASE SAVEPOINT place0")
    soon(broker, topic, ["0", "1", "2", "3", "4"])
    assert shop.orders() == ["0", "1", "2", "3", "4"]


def test_messages_of_another_thread(
    shop: Shop, work: Work, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """Connections of sqlite3 are of one thread; messages are not."""
    with ThreadPoolExecutor(1) as other, producer.transaction(work.given) as tx:
        work.write("lamp")
        other.submit(tx.send, topic, "lamp").result(30)
        work.write("chair")
        other.submit(tx.send, topic, "chair").result(30)
    with ThreadPoolExecutor(1) as other, pytest.raises(LocalTransactionEnded), producer.transaction(work.given) as tx:
        work.write("tent")
        other.submit(tx.send, topic, "tent").result(30)
        work.commit()
        with pytest.raises(LocalTransactionEnded, match="was not sent"):
            other.submit(tx.send, topic, "desk").result(30)
    soon(broker, topic, ["chair", "lamp", "tent"])
    assert shop.orders() == ["chair", "lamp", "tent"]


def test_a_session_that_is_removed_or_closed(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    registry = scoped_session(sessionmaker(shop.engine))
    with pytest.raises(LocalTransactionEnded, match="was not sent"), producer.transaction(registry) as tx:
        registry.execute(ORDER, {"content": "first"})
        tx.send(topic, "first")
        registry.remove()
        registry.execute(ORDER, {"content": "second"})
        tx.send(topic, "second")
    registry.remove()
    with pytest.raises(LocalTransactionEnded, match="was not sent"), Session(shop.engine) as session:  # noqa: SIM117
        with producer.transaction(session) as tx:
            session.execute(ORDER, {"content": "first"})
            session.close()
            session.execute(ORDER, {"content": "second"})
            tx.send_many([])
            tx.send(topic, "second")
    assert (shop.orders(), texts(broker.endpoint, topic)) == ([], [])


@pytest.mark.parametrize("how", ["commit", "rollback"])
async def test_it_on_asyncio(shop: Shop, fence: TransactionFence, broker: EmbeddedBroker, topic: str, how: str) -> None:
    engine = create_async_engine(shop.async_url)
    async with AsyncTransactionProducer(broker.endpoint, "byhand", AsyncTransactionFence(engine)) as producer:
        for opened in (lambda: AsyncSession(engine), engine.connect):
            with pytest.raises(LocalTransactionEnded, match="was not sent"):
                async with opened() as given, producer.transaction(given) as tx:
                    await given.execute(ORDER, {"content": f"{type(given).__name__}"})
                    await tx.send(topic, f"{type(given).__name__}")
                    await getattr(given, how)()
                    with contextlib.suppress(LocalTransactionEnded):
                        await given.execute(ORDER, {"content": "second"})
                    await tx.send(topic, "second")
    await engine.dispose()
    expected = ["AsyncConnection", "AsyncSession"] if how == "commit" else []
    soon(broker, topic, expected)
    assert shop.orders() == expected


def test_it_with_django(
    shop: Shop, alias: str, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """Django refuses both by itself; what goes by the driver is seen as far as it tells."""
    from django.db import connections, transaction
    from django.db.transaction import TransactionManagementError

    def raw(name: str) -> Callable[[], None]:
        return getattr(connections[alias].connection, name)  # type: ignore[no-any-return]

    for number in range(2):
        with producer.transaction(connections[alias]) as tx:
            write_by_django(alias, f"{number}")
            with pytest.raises(TransactionManagementError):
                (transaction.commit if number else transaction.rollback)(using=alias)
            with transaction.atomic(using=alias):
                tx.send(topic, f"{number}")
    with pytest.raises(LocalTransactionEnded, match="was not sent"), producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "2")
        tx.send(topic, "2")
        raw("commit")()
        tx.send(topic, "3")
    with pytest.raises(LocalTransactionEnded, match="was not sent"), producer.transaction(connections[alias]) as tx:
        write_by_django(alias, "4")
        tx.send(topic, "4")
        raw("rollback")()
        tx.send(topic, "5")
    soon(broker, topic, ["0", "1", "2"])
    assert shop.orders() == ["0", "1", "2"]


def test_a_procedure_that_commits_before_a_message(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """No statement is between the two that would tell."""
    if shop.kind not in MYSQL:
        pytest.skip("procedures commit inside of a transaction on MySQL and MariaDB alone")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("CREATE PROCEDURE booked() BEGIN COMMIT; END")
    with pytest.raises(LocalTransactionEnded, match="was not sent"), producer.transaction(shop.engine) as tx:
        tx.connection.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        tx.connection.exec_driver_sql("CALL booked()")
        tx.send(topic, "chair")
    soon(broker, topic, ["lamp"])
    assert shop.orders() == ["lamp"]
