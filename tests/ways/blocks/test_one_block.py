"""A local transaction has one block; what else belongs to it is done by calls that end nothing."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, registry, sessionmaker

from consumer_sdk import ConfigurationError
from consumer_sdk.applied import AppliedMessages, AsyncAppliedMessages
from producer_sdk import AsyncTransactionProducer, Message, TransactionProducer
from producer_sdk.fence import AsyncTransactionFence, TransactionFence
from producer_sdk.outbox import Outbox, RelaySettings
from ways.deliveries import delivered
from ways.shops import FORMS, ORDER, OfDriver, Shop, Work, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.embedded import EmbeddedBroker


@pytest.fixture
def applied(shop: Shop) -> AppliedMessages:
    made = AppliedMessages(shop.engine, "accounts")
    made.create_tables()
    return made


@pytest.fixture
def outbox(shop: Shop) -> Outbox:
    made = Outbox(shop.engine, settings=RelaySettings(poll=0.05))
    made.create_tables()
    return made


@pytest.fixture
def fence(shop: Shop) -> TransactionFence:
    made = TransactionFence(shop.engine)
    made.create_tables()
    return made


@pytest.fixture(params=["fence", "outbox"])
def producer(
    request: pytest.FixtureRequest, broker: EmbeddedBroker, fence: TransactionFence, outbox: Outbox
) -> Iterator[TransactionProducer]:
    store = fence if request.param == "fence" else outbox
    with TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", store) as made:
        yield made


@pytest.fixture(params=["session", "connection", "driver"])
def work(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Work]:
    with FORMS[request.param](shop) as made:
        yield made


def soon(broker: EmbeddedBroker, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while (found := texts(broker.endpoint, topic)) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_block_inside_of_another_is_refused_at_its_door(
    shop: Shop,
    work: Work,
    producer: TransactionProducer,
    applied: AppliedMessages,
    broker: EmbeddedBroker,
    topic: str,
) -> None:
    message = delivered(dedup_key="7")
    with pytest.raises(ConfigurationError, match="another block"), producer.transaction(work.given) as tx:
        work.write("lamp")
        tx.send(topic, "lamp")
        with applied.once(work.given, message):
            work.write("chair")
    with pytest.raises(ConfigurationError, match="another block"), applied.once(work.given, message):
        work.write("lamp")
        with producer.transaction(work.given) as tx:
            tx.send(topic, "chair")
    # What caught it can go on.
    with producer.transaction(work.given) as tx:
        with pytest.raises(ConfigurationError, match="another block"):
            applied.once(work.given, message).__enter__()
        work.write("desk")
        tx.send(topic, "desk")
    soon(broker, topic, ["desk"])
    assert shop.orders() == ["desk"]


def test_blocks_one_after_the_other(
    shop: Shop, work: Work, producer: TransactionProducer, applied: AppliedMessages, broker: EmbeddedBroker, topic: str
) -> None:
    for number in range(3):
        with producer.transaction(work.given) as tx:
            tx.send(topic, f"{number}")
        with pytest.raises(KeyError), producer.transaction(work.given):
            raise KeyError
        with applied.once(work.given, delivered(dedup_key=f"{number}")):
            work.write(f"{number}")
    soon(broker, topic, ["0", "1", "2"])
    assert shop.orders() == ["0", "1", "2"]


def test_a_message_that_is_applied_in_a_producers_block(
    shop: Shop, work: Work, producer: TransactionProducer, applied: AppliedMessages, broker: EmbeddedBroker, topic: str
) -> None:
    message = delivered(dedup_key="7")

    def handle(fails: bool = False) -> bool:
        with producer.transaction(work.given) as tx:
            is_first = applied.mark(work.given, message)
            if is_first:
                work.write("lamp")
                tx.send(topic, "lamp")
            if fails:
                raise KeyError
        return is_first

    with pytest.raises(KeyError):
        handle(fails=True)
    assert [handle(), handle(), handle()] == [True, False, False]
    soon(broker, topic, ["lamp"])
    assert shop.orders() == ["lamp"]


def test_a_message_that_is_sent_while_one_is_applied(
    shop: Shop, work: Work, applied: AppliedMessages, outbox: Outbox, broker: EmbeddedBroker, topic: str
) -> None:
    with TransactionProducer(broker.endpoint, "putting", outbox):
        for _ in range(2):
            with applied.once(work.given, delivered(dedup_key="7")) as is_first:
                if is_first:
                    work.write("lamp")
                    outbox.put(work.given, Message(topic, "lamp"))
        soon(broker, topic, ["lamp"])
    assert shop.orders() == ["lamp"]


def test_a_mark_needs_a_transaction_and_a_message(shop: Shop, applied: AppliedMessages) -> None:
    message = delivered(dedup_key="7")
    alone = sa.create_engine(shop.engine.url, isolation_level="AUTOCOMMIT")
    with alone.connect() as connection, pytest.raises(ConfigurationError, match="autocommit"):
        applied.mark(connection, message)
    alone.dispose()
    with Session(shop.engine) as session:
        given: Any = session
        with pytest.raises(ConfigurationError, match="message is what a consumer delivers") as raised:
            applied.mark(session, given)
        assert raised.value.field == "message"
        with pytest.raises(ConfigurationError, match="message is what a consumer delivers"):
            applied.once(message, given).__enter__()
        with pytest.raises(ConfigurationError, match="not of StoredMessage"):
            applied.mark(message, given)
        assert applied.mark(session, message)
        session.rollback()
        assert applied.mark(session, message)
        session.commit()
        assert not applied.mark(session, message)


async def test_a_mark_on_asyncio(shop: Shop, applied: AppliedMessages) -> None:
    engine = create_async_engine(shop.async_url)
    marks = AsyncAppliedMessages(engine, "accounts")
    message = delivered(dedup_key="7")
    found = []
    for _ in range(2):
        async with AsyncSession(engine) as session, session.begin():
            found.append(await marks.mark(session, message))
            if found[-1]:
                await session.execute(ORDER, {"content": "lamp"})
    assert found == [True, False]
    assert shop.orders() == ["lamp"]
    await engine.dispose()


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_whose_transaction_somebody_else_has_begun(
    shop: Shop,
    producer: TransactionProducer,
    broker: EmbeddedBroker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    fails: bool,
) -> None:
    """As a dependency of FastAPI does: ``with maker.begin() as session: yield session``."""
    raised = pytest.raises(KeyError) if fails else contextlib.nullcontext()
    with raised, sessionmaker(shop.engine).begin() as session, producer.transaction(session) as tx:
        session.execute(ORDER, {"content": "lamp"})
        tx.send(topic, "lamp")
        if fails:
            raise KeyError
    with producer.transaction(shop.engine) as tx:
        tx.send(topic, "zzz")
    soon(broker, topic, ["zzz"] if fails else ["lamp", "zzz"])
    assert shop.orders() == ([] if fails else ["lamp"])
    assert not caplog.records


def test_a_session_that_a_dependency_opens_and_does_not_begin(
    shop: Shop, producer: TransactionProducer, broker: EmbeddedBroker, topic: str
) -> None:
    """What an answer needs can be read inside of the block and behind it; of a session that was begun, inside alone."""
    table = sa.Table("orders", sa.MetaData(), sa.Column("content", sa.String(200), primary_key=True))

    class Order:
        content: str

    registry().map_imperatively(Order, table)

    def place(session: Session, content: str) -> list[str]:
        with producer.transaction(session) as tx:
            order = Order()
            order.content = content
            session.add(order)
            session.flush()
            tx.send(topic, order.content)
            answer = order.content
        return [answer, order.content]

    with sessionmaker(shop.engine)() as session:
        assert place(session, "lamp") == ["lamp", "lamp"]
    with pytest.raises(InvalidRequestError, match="closed transaction"), sessionmaker(shop.engine).begin() as session:
        place(session, "tent")
    soon(broker, topic, ["lamp", "tent"])
    assert shop.orders() == ["lamp", "tent"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_session_whose_transaction_somebody_else_has_begun_on_asyncio(
    shop: Shop,
    fence: TransactionFence,
    broker: EmbeddedBroker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    fails: bool,
) -> None:
    engine = create_async_engine(shop.async_url)
    raised = pytest.raises(KeyError) if fails else contextlib.nullcontext()
    async with AsyncTransactionProducer(broker.endpoint, "begun", AsyncTransactionFence(engine)) as producer:
        with raised:
            async with async_sessionmaker(engine).begin() as session, producer.transaction(session) as tx:
                await session.execute(ORDER, {"content": "lamp"})
                await tx.send(topic, "lamp")
                if fails:
                    raise KeyError
    await engine.dispose()
    assert texts(broker.endpoint, topic) == shop.orders() == ([] if fails else ["lamp"])
    assert not caplog.records


@pytest.mark.parametrize("store", [TransactionFence, Outbox])
def test_a_block_that_never_ended_holds_up_no_later_one_of_its_connection(
    shop: Shop, broker: EmbeddedBroker, topic: str, store: Any
) -> None:
    """Its transaction was ended by hand, and something still refers to it: a traceback, or a cycle of references."""
    made = store(shop.connect)
    made.create_tables()
    with (
        TransactionProducer(broker.endpoint, f"shop-{time.monotonic_ns()}", made) as producer,
        contextlib.closing(shop.connect()) as connection,
    ):
        left = producer.transaction(connection)
        left.__enter__()
        OfDriver(connection).write("lamp")
        connection.commit()
        with producer.transaction(connection) as tx:
            OfDriver(connection).write("desk")
            tx.send(topic, "desk")
        del left
    assert shop.orders() == ["desk", "lamp"]
