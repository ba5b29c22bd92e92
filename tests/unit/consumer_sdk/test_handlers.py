from __future__ import annotations

import asyncio
import threading

import pytest

from consumer_sdk import AsyncConsumer, AsyncReceivedMessage, ConfigurationError, Consumer, ReceivedMessage
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
