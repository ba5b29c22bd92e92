"""Consumers of both forms that are given a handler, against real brokers on every database."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client
from acceptance.sdk_forms import LONG_LEASE, Form, both_forms, consumer, fill, lag, take, texts
from consumer_sdk import Consumer, ReceivedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk import AsyncReceivedMessage
    from support.brokers import BrokerProcess

WORKERS = 5


class Meeting:
    """Handlers that wait here until so many of them are at work at the same time."""

    def __init__(self, workers: int) -> None:
        self._thread_barrier = threading.Barrier(workers)
        self._task_barrier = asyncio.Barrier(workers)
        self._lock = threading.Lock()
        self._at_work = 0
        self.most = 0
        self.names: set[str] = set()

    def function(self, message: ReceivedMessage) -> None:
        self._enter()
        self._thread_barrier.wait(PATIENCE)
        self._leave()

    async def coroutine(self, message: AsyncReceivedMessage) -> None:
        self._enter()
        async with asyncio.timeout(PATIENCE):
            await self._task_barrier.wait()
        self._leave()

    def _enter(self) -> None:
        with self._lock:
            self._at_work += 1
            self.most = max(self.most, self._at_work)
            self.names.add(threading.current_thread().name)

    def _leave(self) -> None:
        with self._lock:
            self._at_work -= 1


def in_form(form: Form, handle: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A handler of the form's own kind: a function, or a coroutine function."""

    async def coroutine(message: AsyncReceivedMessage) -> None:
        handle(message)

    return handle if form == "sync" else coroutine


@both_forms
@pytest.mark.parametrize("workers", [1, 8])
async def test_each_message_is_handled_once(form: Form, workers: int, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(queues=4), await client.make_group()
    bodies = [f"{number}" for number in range(300)]
    await fill(broker.endpoint, topic, bodies)
    handled: list[ReceivedMessage] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message)
        if len(handled) == len(bodies):
            reader.stop()

    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        async with asyncio.timeout(2 * PATIENCE):
            await reader.run(in_form(form, handle), workers=workers)
    assert Counter(message.text for message in handled) == Counter(bodies)
    assert {message.attempt for message in handled} == {1}
    assert await lag(client, topic, group) == 0


@both_forms
async def test_as_many_handlers_work_as_there_are_workers(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group, meeting = await client.make_topic(queues=2), await client.make_group(), Meeting(WORKERS)
    await fill(broker.endpoint, topic, [f"{number}" for number in range(4 * WORKERS)])
    handled: list[str] = []

    def count(message: ReceivedMessage) -> None:
        handled.append(message.text)
        if len(handled) == 4 * WORKERS:
            reader.stop()

    def function(message: ReceivedMessage) -> None:
        meeting.function(message)
        count(message)

    async def coroutine(message: AsyncReceivedMessage) -> None:
        await meeting.coroutine(message)
        count(message)  # type: ignore[arg-type]

    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        await reader.run(function if form == "sync" else coroutine, workers=WORKERS)
    assert meeting.most == WORKERS
    assert all(name.startswith("halfmq-handler") for name in meeting.names) == (form == "sync")
    assert len(set(handled)) == 4 * WORKERS
    assert await lag(client, topic, group) == 0


async def test_a_function_runs_in_threads_of_the_asynchronous_consumer_too(
    client: Client, broker: BrokerProcess
) -> None:
    topic, group, meeting = await client.make_topic(), await client.make_group(), Meeting(WORKERS)
    await fill(broker.endpoint, topic, [f"{number}" for number in range(WORKERS)])

    def handle(message: ReceivedMessage) -> None:
        meeting.function(message)
        reader.stop()

    async with consumer("asyncio", broker.endpoint, group, topic) as reader:
        await reader.run(handle, workers=WORKERS)
    assert meeting.most == WORKERS
    assert await lag(client, topic, group) == 0


@both_forms
async def test_a_handler_that_raises_gets_the_message_again(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill(broker.endpoint, topic, [f"{number}" for number in range(20)])
    seen: list[tuple[str, int, str | None]] = []
    left = {f"{number}" for number in range(20)}

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.text, message.attempt, message.last_error))
        if message.text in {"3", "7"} and message.attempt == 1:
            raise ZeroDivisionError(f"over {message.text}")
        left.discard(message.text)
        if not left:
            reader.stop()

    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        async with asyncio.timeout(2 * PATIENCE):
            await reader.run(in_form(form, handle), workers=4)
    first = [(f"{number}", 1, None) for number in range(20)]
    again = [(body, 2, f"ZeroDivisionError('over {body}')") for body in ("3", "7")]
    assert Counter(seen) == Counter([*first, *again])
    assert await lag(client, topic, group) == 0


@both_forms
async def test_messages_of_one_group_are_handled_in_their_order(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(queues=4), await client.make_group()
    customers = [f"customer {number}" for number in range(6)]
    for number in range(10):
        for customer in customers:
            await client.send(topic, f"{number}", message_group=customer)
    handled: dict[str, list[int]] = {customer: [] for customer in customers}
    at_work: set[str] = set()
    together: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        customer = message.message_group or ""
        if customer in at_work:
            together.append(customer)
        at_work.add(customer)
        handled[customer].append(int(message.text))
        if sum(map(len, handled.values())) == 60:
            reader.stop()
        at_work.discard(customer)

    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        async with asyncio.timeout(2 * PATIENCE):
            await reader.run(in_form(form, handle), workers=8)
    assert handled == {customer: list(range(10)) for customer in customers}
    assert together == []


@both_forms
async def test_stop_ends_it_after_what_is_at_work(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(queues=2), await client.make_group()
    bodies = [f"{number}" for number in range(100)]
    await fill(broker.endpoint, topic, bodies)
    handled: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.text)
        if len(handled) >= 30:
            reader.stop()

    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        await reader.run(in_form(form, handle), workers=4)
        ended = list(handled)
        # Again, and again nothing.
        await reader.run(in_form(form, handle), workers=4)
        assert await reader.receive(timeout=PATIENCE) == []
    assert handled == ended
    assert 30 <= len(handled) < 100
    assert await lag(client, topic, group) == 100 - len(handled)
    async with consumer(form, broker.endpoint, group, topic) as successor:
        rest = await take(successor, 100 - len(handled))
        assert Counter([*handled, *texts(rest)]) == Counter(bodies)
        assert {message.attempt for message in rest} == {1}


async def test_close_waits_for_handlers_at_work(client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill(broker.endpoint, topic, ["at work"])
    started, go_on = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        started.set()
        assert go_on.wait(PATIENCE)

    reader = Consumer(broker.endpoint, group, topic, lease_duration=LONG_LEASE, close_grace=PATIENCE)
    running = asyncio.create_task(asyncio.to_thread(reader.run, handle, 1))
    assert await asyncio.to_thread(started.wait, PATIENCE)
    waiting = asyncio.create_task(asyncio.to_thread(reader.receive))
    closing = asyncio.create_task(asyncio.to_thread(reader.close))
    # Nothing more is handed out: close() has begun.
    assert await waiting == []
    assert not closing.done()
    go_on.set()
    await asyncio.gather(running, closing)
    assert await lag(client, topic, group) == 0
