"""Consumers that apply: redeliveries and repeated messages have one effect; marks go when nothing asks for them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from consumer_sdk import Admin, AsyncConsumer, Consumer, QueueOffset, QueueReader, ReceivedMessage
from consumer_sdk.applied import AppliedMessages, AppliedSettings, AsyncAppliedMessages, by_property
from producer_sdk import ConfigurationError, Message, Producer
from ways.deliveries import delivered
from ways.shops import ORDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.embedded import EmbeddedBroker
    from client_core.stored import StoredMessage
    from ways.shops import Shop

BY_ORDER = by_property("order")


def write(message: StoredMessage, connection: sa.Connection) -> None:
    connection.execute(ORDER, {"content": f"{message.properties['order']} {message.text}"})


def send(broker: EmbeddedBroker, topic: str, *orders: str) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many(Message(topic, "bought", properties={"order": each}) for each in orders)


def marks(shop: Shop) -> int:
    with shop.engine.connect() as connection:
        return int(connection.execute(sa.text("SELECT COUNT(*) FROM halfmq_applied")).scalar_one())


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def group(broker: EmbeddedBroker, topic: str) -> str:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queues=2)
        admin.create_group(f"of-{topic}", retry_delays=[0.01], start="earliest")
    return f"of-{topic}"


def handled(broker: EmbeddedBroker, topic: str, group: str) -> bool:
    with QueueReader(broker.endpoint) as reader:
        offsets = reader.queue_offsets(topic, group)
    return bool(sum(each.max_offset for each in offsets)) and all(each.lag == 0 for each in offsets)


def run_until_handled(
    consumer: Consumer,
    applied: AppliedMessages,
    handler: Callable[[StoredMessage, sa.Connection], None],
    done: Callable[[], bool],
) -> None:
    running = threading.Thread(target=consumer.run, args=(handler,), kwargs={"applied": applied})
    running.start()
    try:
        until(done)
    finally:
        consumer.stop()
        running.join(20)


def test_redeliveries_and_repeated_messages_have_one_effect(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER)
    applied.create_tables()
    send(broker, topic, *"abcdefgh", *"hgfe")
    failed: set[str] = set()

    def write_at_the_second_try(message: StoredMessage, connection: sa.Connection) -> None:
        write(message, connection)
        if message.message_id not in failed:
            failed.add(message.message_id)
            raise KeyError

    with Consumer(broker.endpoint, group, topic) as consumer:
        run_until_handled(consumer, applied, write_at_the_second_try, lambda: handled(broker, topic, group))
    assert shop.orders() == [f"{each} bought" for each in "abcdefgh"]
    assert marks(shop) == 8


def test_one_that_was_applied_and_not_acked_is_not_applied_again(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER)
    applied.create_tables()
    send(broker, topic, "a")
    with Consumer(broker.endpoint, group, topic) as consumer:
        (message,) = consumer.receive(timeout=20)
        applied.handler(write)(message)
        message.nack(delay=0.01)
    with Consumer(broker.endpoint, group, topic) as consumer:
        run_until_handled(consumer, applied, write, lambda: handled(broker, topic, group))
    assert shop.orders() == ["a bought"]


def test_a_dead_letter_keeps_its_key(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    applied = AppliedMessages(shop.engine, group)
    applied.create_tables()
    handler = applied.handler(lambda message, connection: connection.execute(ORDER, {"content": message.text}))
    dead_letters = f"%DLQ%{group}"
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.update_group(group, max_attempts=1)
        producer.send(topic, "a lamp", dedup_key="7")
        with Consumer(broker.endpoint, group, topic) as consumer:
            (message,) = consumer.receive(timeout=20)
            handler(message)
            message.nack()  # As where each ack was lost.
            for progress in admin.redrive(group):
                assert progress.redriven == 1
            (redriven,) = consumer.receive(timeout=20)
            assert redriven.topic == topic
            handler(redriven)
            redriven.ack()
        with Consumer(broker.endpoint, group, dead_letters, start="earliest") as consumer:
            (letter,) = consumer.receive(timeout=20)
            assert letter.topic == dead_letters
            handler(letter)
            letter.ack()
    assert shop.orders() == ["a lamp"]


def test_marks_go_when_they_are_old_and_their_messages_are_handled(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER, settings=AppliedSettings(keep=0))
    kept = AppliedMessages(shop.engine, group, key=BY_ORDER)
    applied.create_tables()
    send(broker, topic, "a", "b", "c")
    with Consumer(broker.endpoint, group, topic) as consumer:
        messages = []
        while len(messages) < 3:
            messages += consumer.receive(3, timeout=20)
        for message in messages:
            applied.handler(write)(message)
        assert applied.clean(consumer) == 0, "none is acked"
        consumer.ack(messages[1:])
        assert kept.clean(consumer) == 0
        # What comes after one that is not handled may be delivered again, as far as the position tells.
        count = applied.clean(consumer)
        assert marks(shop) == 3 - count >= 1
        consumer.ack(messages[:1])
        assert count + applied.clean(consumer) == 3
    assert marks(shop) == 0


def test_a_running_consumer_cleans_by_itself(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER, settings=AppliedSettings(keep=0, clean_every=0.05))
    applied.create_tables()
    send(broker, topic, *"abcd")
    with Consumer(broker.endpoint, group, topic) as consumer:
        run_until_handled(consumer, applied, write, lambda: handled(broker, topic, group) and marks(shop) == 0)
    assert shop.orders() == [f"{each} bought" for each in "abcd"]


def test_many_marks_are_deleted_in_parts(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER, settings=AppliedSettings(keep=0))
    applied.create_tables()
    send(broker, topic, *(f"{number}" for number in range(1200)))
    with Consumer(broker.endpoint, group, topic, prefetch=2000) as consumer:
        count = 0
        while count < 1200:
            messages = consumer.receive(1200, timeout=20)
            with shop.engine.connect() as connection, applied.batch(connection, messages) as fresh:
                assert len(fresh) == len(messages)
            consumer.ack(messages)
            count += len(messages)
        assert applied.clean(consumer) == 1200
    assert marks(shop) == 0


class Meanwhile:
    """A consumer; does something once, after its first answer on positions and before the sweep goes on."""

    def __init__(self, consumer: Consumer, act: Callable[[], None]) -> None:
        self._consumer = consumer
        self._acts = [act]

    def queue_offsets(self, topic: str, group: str | None = None, /) -> list[QueueOffset]:
        offsets = self._consumer.queue_offsets(topic, group)
        while self._acts:
            self._acts.pop()()
        return offsets


class MeanwhileAsync:
    """The same on asyncio."""

    def __init__(self, reader: Meanwhile) -> None:
        self._reader = reader

    async def queue_offsets(self, topic: str, group: str | None = None, /) -> list[QueueOffset]:
        return self._reader.queue_offsets(topic, group)


@pytest.mark.parametrize("form", ["threads", "asyncio"])
async def test_marks_of_messages_that_come_during_a_sweep_stay(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str, form: str
) -> None:
    settings = AppliedSettings(keep=0)
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER, settings=settings)
    applied.create_tables()
    count, late = 600, 10

    def receive_and_apply(consumer: Consumer, wanted: int) -> list[ReceivedMessage]:
        messages: list[ReceivedMessage] = []
        while len(messages) < wanted:
            messages += consumer.receive(wanted - len(messages), timeout=20)
        with shop.engine.connect() as connection, applied.batch(connection, messages) as fresh:
            assert len(fresh) == len(messages)
        return messages

    send(broker, topic, *(f"{number}" for number in range(count)))
    with Consumer(broker.endpoint, group, topic, prefetch=2000) as consumer:
        consumer.ack(receive_and_apply(consumer, count))
        held: list[ReceivedMessage] = []

        def apply_more() -> None:
            send(broker, topic, *(f"late {number}" for number in range(late)))
            held.extend(receive_and_apply(consumer, late))

        reader = Meanwhile(consumer, apply_more)
        if form == "asyncio":
            engine = create_async_engine(shop.async_url)
            deleted = await AsyncAppliedMessages(engine, group, settings=settings).clean(MeanwhileAsync(reader))
            await engine.dispose()
        else:
            deleted = applied.clean(reader)
        assert deleted == count
        assert marks(shop) == late, "none of them is acked"
        consumer.ack(held)
        assert applied.clean(consumer) == late


def test_marks_of_a_topic_that_is_gone_can_go(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER, settings=AppliedSettings(keep=0))
    applied.create_tables()
    send(broker, topic, "a")
    with Consumer(broker.endpoint, group, topic) as consumer:
        (message,) = consumer.receive(timeout=20)
        applied.handler(write)(message)
        message.ack()
    with Admin(broker.endpoint) as admin:
        admin.delete_topic(topic)
    with QueueReader(broker.endpoint) as reader:
        assert applied.clean(reader) == 1


def test_a_consumer_of_another_group_is_refused(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    applied = AppliedMessages(shop.engine, "another")
    with Consumer(broker.endpoint, group, topic) as consumer, pytest.raises(ConfigurationError, match="'another'"):
        consumer.run(write, applied=applied)


async def test_on_asyncio(shop: Shop, broker: EmbeddedBroker, topic: str, group: str) -> None:
    engine = create_async_engine(shop.async_url)
    applied = AsyncAppliedMessages(engine, group, key=BY_ORDER, settings=AppliedSettings(keep=0, clean_every=0.05))
    await applied.create_tables()
    send(broker, topic, *"abcd", *"dcba")
    async with AsyncConsumer(broker.endpoint, group, topic) as consumer:
        left = {"a", "b", "c"}

        async def write_at_the_second_try(message: StoredMessage, connection: sa.ext.asyncio.AsyncConnection) -> None:
            await connection.execute(ORDER, {"content": f"{message.properties['order']} {message.text}"})
            order = message.properties["order"]
            if order in left:
                left.remove(order)
                raise KeyError
            if order == "d":
                consumer.stop()

        await consumer.run(write_at_the_second_try, workers=1, applied=applied)
    async with engine.connect() as connection:
        found = (await connection.execute(sa.text("SELECT content FROM orders ORDER BY content"))).scalars().all()
    assert "d bought" in found
    assert len(found) == len(set(found))
    with Consumer(broker.endpoint, group, topic) as rest:
        run_until_handled(
            rest, AppliedMessages(shop.engine, group, key=BY_ORDER), write, lambda: handled(broker, topic, group)
        )
    assert shop.orders() == [f"{each} bought" for each in "abcd"]
    await engine.dispose()


async def test_on_asyncio_a_plain_function_is_refused(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    applied = AsyncAppliedMessages(create_async_engine(shop.async_url), group)
    async with AsyncConsumer(broker.endpoint, group, topic) as consumer:
        with pytest.raises(TypeError, match="coroutine function"):
            await consumer.run(write, applied=applied)  # type: ignore[call-overload]


def later(message: StoredMessage, connection: sa.Connection) -> Any:
    """A generator, which does not run by being called."""
    yield write(message, connection)


async def awaited(message: StoredMessage, connection: sa.Connection) -> None:
    write(message, connection)


@pytest.mark.parametrize("function", [later, awaited])
def test_a_function_that_returns_before_it_has_run_is_not_applied(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str, function: Any
) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER)
    applied.create_tables()
    send(broker, topic, "a", "b")
    calls: list[str] = []

    def called(message: StoredMessage, connection: sa.Connection) -> Any:
        calls.append(message.message_id)
        return function(message, connection)

    with Consumer(broker.endpoint, group, topic) as consumer:
        run_until_handled(consumer, applied, called, lambda: len(set(calls)) == 2 and len(calls) > 2)
        assert (shop.orders(), marks(shop)) == ([], 0)
        # It was given back each time, and a function that works applies it.
    with Consumer(broker.endpoint, group, topic) as consumer:
        run_until_handled(consumer, applied, write, lambda: handled(broker, topic, group))
    assert shop.orders() == ["a bought", "b bought"]


def test_a_coroutine_function_is_refused_by_the_form_that_does_not_await_it(
    shop: Shop, broker: EmbeddedBroker, topic: str, group: str
) -> None:
    applied = AppliedMessages(shop.engine, group, key=BY_ORDER)
    with pytest.raises(TypeError, match="AsyncAppliedMessages"):
        applied.handler(awaited)
    with Consumer(broker.endpoint, group, topic) as consumer, pytest.raises(TypeError, match="AsyncAppliedMessages"):
        consumer.run(awaited, applied=applied)


def test_a_generator_is_no_handler(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker, topic, "a")
    calls: list[str] = []

    def called(message: ReceivedMessage) -> Any:
        calls.append(message.message_id)
        return (each for each in "a")

    with Consumer(broker.endpoint, group, topic) as consumer:
        running = threading.Thread(target=consumer.run, args=(called,))
        running.start()
        until(lambda: len(calls) > 1)
        consumer.stop()
        running.join(20)
    assert not handled(broker, topic, group)


def test_a_mark_that_a_frozen_consumer_has_is_waited_for_some_seconds(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shop.kind != "postgresql":
        pytest.skip("other servers limit waits for locks by themselves")
    for module in ("applied", "async_applied"):
        monkeypatch.setattr(f"consumer_sdk.applied.{module}.WAIT_FOR_MARK", 0.3)
    applied = AppliedMessages(shop.engine, "accounts", key=BY_ORDER)
    applied.create_tables()
    message, seen = delivered("bought", order="a"), []

    def look(message: StoredMessage, connection: sa.Connection) -> None:
        seen.append(connection.exec_driver_sql("SHOW lock_timeout").scalar_one())
        write(message, connection)

    with shop.engine.connect() as frozen:
        applied.mark(frozen, message)
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            applied.handler(look)(message)
        frozen.rollback()
    applied.handler(look)(message)
    # The function's own statements wait as the session is set.
    assert (seen, shop.orders()) == (["0"], ["a bought"])


async def test_such_a_mark_on_asyncio(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    if shop.kind != "postgresql":
        pytest.skip("other servers limit waits for locks by themselves")
    monkeypatch.setattr("consumer_sdk.applied.async_applied.WAIT_FOR_MARK", 0.3)
    for url in (shop.async_url, shop.url):
        engine = create_async_engine(url)
        applied = AsyncAppliedMessages(engine, "accounts", key=by_property("order"))
        await applied.create_tables()
        message = delivered("bought", order=url)

        async def add(message: StoredMessage, connection: Any) -> None:
            await connection.execute(ORDER, {"content": message.properties["order"]})

        async with engine.connect() as frozen:
            await applied.mark(frozen, message)
            with pytest.raises(sa.exc.DBAPIError, match="lock timeout"):
                await applied.handler(add)(message)
            await frozen.rollback()
        await applied.handler(add)(message)
        await engine.dispose()
    assert len(shop.orders()) == 2
