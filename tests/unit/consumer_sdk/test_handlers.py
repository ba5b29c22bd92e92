from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from consumer_sdk import (
    AsyncConsumer,
    AsyncReceivedMessage,
    ClientClosed,
    ConfigurationError,
    Consumer,
    QueueReader,
    ReceivedMessage,
)
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker, handle


async def test_a_handler_that_returns_acks_and_one_that_raises_nacks(stub: StubConsumeBroker) -> None:
    async def handler(message: AsyncReceivedMessage) -> None:
        if message.offset == 1:
            raise ValueError("x" * 1_000)

    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handler))
        session = await stub.session()
        session.deliver(range(4))
        await stub.until(lambda: len(session.handles("ack")) == 3 and session.of("nack"))
        consumer.stop()
        await running
    assert sorted(session.handles("ack")) == [handle(0), handle(2), handle(3)]
    nack = session.of("nack")[0].nack
    assert list(nack.receipt_handles) == [handle(1)]
    assert nack.reason.startswith("ValueError('xxx")
    assert len(nack.reason) == 500
    assert not nack.untried
    assert not nack.HasField("delay")


async def test_as_many_handlers_work_as_there_are_workers(stub: StubConsumeBroker) -> None:
    at_work: list[int] = []
    gate = asyncio.Event()

    async def handler(message: AsyncReceivedMessage) -> None:
        at_work.append(message.offset)
        await stub.changed()
        await gate.wait()

    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handler, workers=3))
        session = await stub.session()
        session.deliver(range(10))
        await stub.until(lambda: len(at_work) == 3)
        gate.set()
        await stub.until(lambda: len(session.handles("ack")) == 10)
        consumer.stop()
        await running
    assert at_work[:3] == [0, 1, 2]


async def test_messages_of_one_group_are_handled_one_after_the_other(stub: StubConsumeBroker) -> None:
    at_work: set[str] = set()
    order: list[int] = []

    async def handler(message: AsyncReceivedMessage) -> None:
        assert message.message_group not in at_work
        at_work.add(message.message_group or "")
        order.append(message.offset)
        await asyncio.to_thread(lambda: None)
        at_work.discard(message.message_group or "")

    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handler, workers=8))
        session = await stub.session()
        session.deliver(range(20), message_group="a")
        session.deliver(range(20, 40), message_group="b")
        await stub.until(lambda: len(session.handles("ack")) == 40)
        consumer.stop()
        await running
    assert [offset for offset in order if offset < 20] == list(range(20))
    assert [offset for offset in order if offset >= 20] == list(range(20, 40))


@pytest.mark.parametrize("how", ["function", "lambda around a coroutine", "object"])
async def test_every_kind_of_handler_is_called(stub: StubConsumeBroker, how: str) -> None:
    seen: list[str] = []

    async def coroutine(message: AsyncReceivedMessage) -> None:
        seen.append(threading.current_thread().name)

    class Callable:
        async def __call__(self, message: AsyncReceivedMessage) -> None:
            await coroutine(message)

    handlers = {
        "function": lambda _: seen.append(threading.current_thread().name),
        "lambda around a coroutine": coroutine,
        "object": Callable(),
    }
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handlers[how]))
        session = await stub.session()
        session.deliver([0])
        await stub.until(lambda: session.of("ack"))
        consumer.stop()
        await running
    assert seen[0].startswith("halfmq-handler") == (how == "function")


async def test_close_waits_for_handlers_at_work_and_gives_the_others_back(stub: StubConsumeBroker) -> None:
    gate = asyncio.Event()
    came = asyncio.Event()

    async def handler(message: AsyncReceivedMessage) -> None:
        came.set()
        await gate.wait()

    consumer = AsyncConsumer(stub.endpoint, "g", "orders")
    running = asyncio.create_task(consumer.run(handler, workers=1))
    session = await stub.session()
    session.deliver(range(3))
    await came.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.wait([closing], timeout=0)
    gate.set()
    await closing
    await running
    assert session.handles("ack") == [handle(0)]
    assert [sorted(nack.receipt_handles) for nack in stub.nacks] == [[handle(1), handle(2)]]


async def test_close_leaves_handlers_that_take_too_long(stub: StubConsumeBroker) -> None:
    came = asyncio.Event()

    async def handler(message: AsyncReceivedMessage) -> None:
        came.set()
        await asyncio.Event().wait()

    consumer = AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05)
    running = asyncio.create_task(consumer.run(handler, workers=1))
    (await stub.session()).deliver([0])
    await came.wait()
    async with asyncio.timeout(5):
        await consumer.close()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(0)]]


async def test_cancelling_run_stops_it_and_lets_handlers_finish(stub: StubConsumeBroker) -> None:
    gate = asyncio.Event()
    came = asyncio.Event()

    async def handler(message: AsyncReceivedMessage) -> None:
        came.set()
        await gate.wait()

    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handler, workers=1))
        session = await stub.session()
        session.deliver([0])
        await came.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gate.set()
    assert session.handles("ack") == [handle(0)]


async def test_the_number_of_workers_is_checked(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        with pytest.raises(ConfigurationError, match="workers"):
            await consumer.run(print, workers=0)
        consumer.stop()
        await consumer.run(print)


async def test_the_synchronous_consumer_runs_handlers_until_another_thread_stops_it(stub: StubConsumeBroker) -> None:
    seen: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        seen.append(threading.current_thread().name)
        if message.offset == 2:
            raise ValueError("no")

    def work() -> None:
        with Consumer(stub.endpoint, "g", "orders") as consumer:
            consumers.append(consumer)
            consumer.run(handler, workers=2)

    consumers: list[Consumer] = []
    running = asyncio.create_task(asyncio.to_thread(work))
    session = await stub.session()
    session.deliver(range(3))
    await stub.until(lambda: len(session.handles("ack")) == 2 and session.of("nack"))
    consumers[0].stop()
    await running
    assert all(name.startswith("halfmq-handler") for name in seen)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["function", "coroutine"])
async def test_a_handler_that_ends_the_process_ends_run_first(
    stub: StubConsumeBroker, how: str, kind: type[BaseException]
) -> None:
    def function(message: AsyncReceivedMessage) -> None:
        raise kind(3)

    async def coroutine(message: AsyncReceivedMessage) -> None:
        raise kind(3)

    handler = function if how == "function" else coroutine
    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        stub.deliver_first = range(3)
        with pytest.raises(kind):
            await consumer.run(handler, workers=1)
    (session,) = stub.sessions
    assert session.handles("nack") == [handle(0)]
    assert session.of("nack")[0].nack.reason == f"{kind.__name__}(3)"
    assert [sorted(nack.receipt_handles) for nack in stub.nacks] == [[handle(1), handle(2)]]


async def test_the_loop_of_synchronous_clients_outlives_a_handler_that_exits(stub: StubConsumeBroker) -> None:
    def work() -> None:
        with QueueReader(stub.endpoint) as other:
            with pytest.raises(SystemExit) as caught, Consumer(stub.endpoint, "g", "orders") as consumer:
                consumer.run(lambda _: sys.exit(3))
            assert caught.value.code == 3
            assert other.queue_offsets("orders")[0].min_offset == 1

    stub.deliver_first = range(1)
    async with asyncio.timeout(20):
        await asyncio.to_thread(work)


@pytest.mark.parametrize("error", [asyncio.CancelledError("not ours"), ValueError("no")])
async def test_a_cancellation_of_the_handlers_own_is_a_failure_like_others(
    stub: StubConsumeBroker, error: BaseException
) -> None:
    async def handler(message: AsyncReceivedMessage) -> None:
        if message.offset == 0:
            raise error
        consumer.stop()

    async with asyncio.timeout(10), AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        stub.deliver_first = range(2)
        await consumer.run(handler, workers=1)
    assert stub.sessions[0].handles("nack") == [handle(0)]
    assert stub.sessions[0].handles("ack") == [handle(1)]


@pytest.mark.parametrize("how", ["function", "coroutine", "synchronous consumer"])
async def test_a_handler_may_close_its_consumer(stub: StubConsumeBroker, how: str) -> None:
    async def coroutine(_: AsyncReceivedMessage) -> None:
        await consumer.close()

    def function(_: AsyncReceivedMessage) -> None:
        asyncio.run_coroutine_threadsafe(consumer.close(), loop).result(5)

    def work() -> None:
        blocking = Consumer(stub.endpoint, "g", "orders")
        blocking.run(lambda _: blocking.close(), workers=1)
        with pytest.raises(ClientClosed):
            blocking.wait_until_subscribed()

    loop = asyncio.get_running_loop()
    stub.deliver_first = range(2)
    consumer = AsyncConsumer(stub.endpoint, "g", "orders")
    async with asyncio.timeout(9):  # sooner than the grace of close()
        if how == "synchronous consumer":
            await asyncio.to_thread(work)
        else:
            await consumer.run(coroutine if how == "coroutine" else function, workers=1)
            with pytest.raises(ClientClosed):
                await consumer.start()
    assert stub.sessions[0].handles("ack") == [handle(0)]
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(1)]]


@pytest.mark.parametrize("wrong", [None, 5])
async def test_what_cannot_be_called_is_refused_before_anything_is_taken(stub: StubConsumeBroker, wrong: Any) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders")
    with pytest.raises(TypeError, match="handler"):
        await consumer.run(wrong)
    await consumer.close()
    blocking = Consumer(stub.endpoint, "g", "orders")
    with pytest.raises(TypeError, match="handler"):
        await asyncio.to_thread(blocking.run, wrong)
    await asyncio.to_thread(blocking.close)
    assert not stub.sessions
