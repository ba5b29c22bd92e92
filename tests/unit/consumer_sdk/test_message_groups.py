from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consumer_sdk import AsyncConsumer, AsyncReceivedMessage, Consumer, ReceivedMessage, RetryConfig, StaleReceipt
from unit.consumer_sdk.fifo_broker import FifoBroker
from unit.consumer_sdk.stub_consume_broker import StubConsumeBroker, handle

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = RetryConfig(initial_backoff=0.001, maximum_backoff=0.01, deadline=5.0)
STALE = (grpc.StatusCode.FAILED_PRECONDITION, "RECEIPT_STALE")

plans = st.fixed_dictionaries(
    {
        "groups": st.integers(1, 4),
        "count": st.integers(1, 8),
        "lease_size": st.integers(1, 6),
        "part_size": st.integers(1, 6),
        "workers": st.integers(1, 6),
        "prefetch": st.integers(1, 12),
        "max_attempts": st.sampled_from([2, 1000]),
        "failures": st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 7)), st.integers(1, 3), max_size=6),
        "breaks": st.lists(st.integers(1, 8), max_size=3),
        "how": st.sampled_from(["raises", "nacks", "nacks without waiting"]),
    }
)


def expected(count: int, group: int, failures: dict[tuple[int, int], int], max_attempts: int) -> list[int]:
    """The offsets in the order in which handlers must see them."""
    tries = {offset: failures.get((group, offset), 0) for offset in range(count)}
    return [offset for offset, failing in tries.items() for _ in range(min(failing, max_attempts - 1) + 1)]


class Work:
    """Handles messages, some of them badly, and remembers in which order."""

    def __init__(self, names: list[str], failures: dict[tuple[int, int], int]) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.at_work: set[str] = set()
        self.left = {(names[group], offset): times for (group, offset), times in failures.items() if group < len(names)}

    def fails(self, message: ReceivedMessage | AsyncReceivedMessage) -> bool:
        name = message.message_group or ""
        assert name not in self.at_work
        self.at_work.add(name)
        self.seen[name].append(message.offset)
        key = (name, message.offset)
        if not self.left.get(key):
            return False
        self.left[key] -= 1
        return True

    def over(self, message: ReceivedMessage | AsyncReceivedMessage) -> None:
        self.at_work.discard(message.message_group or "")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans)
def test_run_handles_groups_in_order_whatever_fails(plan: dict[str, object]) -> None:
    # A handler that fails is an error in the log, with its traceback: thousands of them here.
    log = logging.getLogger("halfmq.consumer")
    log.disabled = True
    try:
        asyncio.run(_run(**plan))  # type: ignore[arg-type]
    finally:
        log.disabled = False


async def _run(
    groups: int,
    count: int,
    lease_size: int,
    part_size: int,
    workers: int,
    prefetch: int,
    max_attempts: int,
    failures: dict[tuple[int, int], int],
    breaks: list[int],
    how: str,
) -> None:
    names = [f"g{number}" for number in range(groups)]
    work = Work(names, failures)

    async def handler(message: AsyncReceivedMessage) -> None:
        failing = work.fails(message)
        try:
            await asyncio.sleep(0)
            if failing and how == "raises":
                raise LookupError("not today")
        finally:
            work.over(message)

    async def iterate(consumer: AsyncConsumer) -> None:
        async for message in consumer:
            failing = work.fails(message)
            work.over(message)
            if failing:
                # A nack whose answer was lost with its stream is refused when it is said again.
                with contextlib.suppress(StaleReceipt):
                    await message.nack(0, wait=how == "nacks")
            else:
                await message.ack(wait=False)

    async with (
        FifoBroker(names, count, lease_size, part_size, max_attempts, breaks) as broker,
        AsyncConsumer(broker.endpoint, "g", "orders", prefetch=prefetch, retry=QUICK) as consumer,
    ):
        working = asyncio.create_task(consumer.run(handler, workers=workers) if how == "raises" else iterate(consumer))
        await broker.until(lambda: broker.done)
        consumer.stop()
        await working
    wanted = {name: expected(count, number, failures, max_attempts) for number, name in enumerate(names)}
    assert work.seen == wanted
    # A give-back behind a dead letter may find that nothing is left to give back; nothing else is ever refused.
    assert not [refused for refused in broker.refused if not (broker.dead_letters or breaks)]
    assert not broker.nacks
    assert not broker.overdrawn


async def test_what_arrived_with_the_end_of_a_stream_is_received() -> None:
    """Streams end while the consumer writes; the second message of a group is the last that they bring."""
    for _ in range(20):
        await _run(
            groups=4,
            count=2,
            lease_size=3,
            part_size=1,
            workers=5,
            prefetch=8,
            max_attempts=1000,
            failures={(0, 1): 3, (2, 0): 2, (1, 2): 1},
            breaks=[1, 2],
            how="nacks without waiting",
        )


@pytest.mark.parametrize("wait", [True, False])
async def test_what_waits_behind_a_nack_is_not_handed_out(stub: StubConsumeBroker, wait: bool) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10) as consumer:
        session = await stub.session()
        session.deliver(range(4), lease="1.a", message_group="a")
        session.deliver([4, 5], lease="1.b", message_group="b")
        session.deliver([6], lease="2.a")
        first, second = await consumer.receive(2)
        await first.ack()
        await stub.until(lambda: session.credits == 5)
        await second.nack(wait=wait)
        received: list[int] = []
        while len(received) < 3:
            received += [message.offset for message in await consumer.receive(10)]
        assert received == [4, 5, 6]
        # What was dropped made room, and is neither given back nor extended.
        await stub.until(lambda: session.credits == 10)
    assert session.handles("nack") == [handle(1)]
    assert {one for nack in stub.nacks for one in nack.receipt_handles} == {handle(4, "1.b"), handle(6, "2.a")}


async def test_a_later_part_of_the_delivery_is_dropped_on_arrival(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10) as consumer:
        session = await stub.session()
        session.deliver([0, 1], lease="1.a", message_group="a")
        (first,) = await consumer.receive(1)
        await first.nack()
        await stub.until(lambda: session.credits == 10)
        session.deliver([2, 3], lease="1.a", message_group="a")
        await stub.until(lambda: session.credits == 10)
        session.deliver([0], lease="1.b", message_group="a", attempt=2)
        (again,) = await consumer.receive(5)
        assert (again.offset, again.attempt) == (0, 2)
        await stub.until(lambda: session.credits == 10)
        await again.ack()
    assert not stub.nacks


async def test_what_the_application_holds_is_refused_after_a_nack(stub: StubConsumeBroker) -> None:
    stub.errors = {handle(1): [STALE], handle(2): [STALE]}
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(4), message_group="a")
        messages = await consumer.receive(3)
        await messages[0].nack(wait=False)
        for message in messages[1:]:
            with pytest.raises(StaleReceipt):
                await message.ack()
        kinds = [request.WhichOneof("event") for request in session.requests]
        assert kinds.index("nack") < kinds.index("ack")
    assert not stub.nacks


async def test_a_nack_goes_behind_the_acks_that_were_said_before_it(stub: StubConsumeBroker) -> None:
    stub.answering = False
    async with AsyncConsumer(stub.endpoint, "g", "orders", close_grace=0.05) as consumer:
        session = await stub.session()
        session.deliver(range(4), message_group="a")
        messages = await consumer.receive(4)
        await messages[0].ack(wait=False)
        await stub.until(lambda: session.of("ack"))
        await messages[1].ack(wait=False)
        await messages[2].nack(wait=False)
        session.answer(session.of("ack")[0])
        await stub.until(lambda: len(session.of("ack")) == 2)
        assert not session.of("nack")
        session.answer(session.of("ack")[1])
        await stub.until(lambda: session.of("nack"))
    assert session.handles("nack") == [handle(2)]


async def test_a_nack_of_what_was_acked_takes_nothing_back(stub: StubConsumeBroker) -> None:
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(3), message_group="a")
        (first,) = await consumer.receive(1)
        stub.answering = False
        await first.ack(wait=False)
        await first.nack(wait=False)
        assert [message.offset for message in await consumer.receive(5)] == [1, 2]
        await stub.until(lambda: session.of("ack"))
        stub.answering = True
        session.answer(session.of("ack")[0])


async def test_after_a_refused_ack_the_rest_of_the_lease_is_somebody_elses(stub: StubConsumeBroker) -> None:
    stub.errors = {handle(0): [STALE]}
    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=10) as consumer:
        session = await stub.session()
        session.deliver(range(3), message_group="a")
        (first,) = await consumer.receive(1)
        with pytest.raises(StaleReceipt):
            await first.ack()
        session.deliver([9], lease="2.a")
        assert [message.offset for message in await consumer.receive(5)] == [9]
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(9, "2.a")]]


async def test_behind_a_dead_letter_the_rest_is_given_back_untried(
    stub: StubConsumeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    stub.dead = {handle(0)}
    stub.errors = {handle(1): [STALE]}
    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        session = await stub.session()
        session.deliver(range(3), message_group="a")
        (first,) = await consumer.receive(1)
        assert await first.nack() is not None
        await stub.until(lambda: len(session.of("nack")) == 2)
        rest = session.of("nack")[1].nack
        assert (list(rest.receipt_handles), rest.untried) == ([handle(1)], True)
    assert not stub.nacks
    assert not caplog.records


async def test_close_gives_back_the_head_of_each_lease(stub: StubConsumeBroker) -> None:
    consumer = AsyncConsumer(stub.endpoint, "g", "orders", prefetch=20)
    await consumer.start()
    session = await stub.session()
    session.deliver(range(3), lease="1.a", message_group="a")
    session.deliver(range(3, 6), lease="1.b", message_group="b")
    session.deliver([6, 7], lease="2.a")
    messages = await consumer.receive(4)
    await messages[0].ack()
    await consumer.close()
    (nack,) = stub.nacks
    assert nack.untried
    assert list(nack.receipt_handles) == [handle(1), handle(3, "1.b"), handle(6, "2.a"), handle(7, "2.a")]


async def test_after_an_error_what_was_taken_of_a_group_counts_as_tried(stub: StubConsumeBroker) -> None:
    with pytest.raises(LookupError):
        async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
            session = await stub.session()
            session.deliver(range(5), message_group="a")
            await consumer.receive(2)
            raise LookupError("no such customer")
    tried, untried = stub.nacks
    assert (list(tried.receipt_handles), tried.untried) == ([handle(0), handle(1)], False)
    assert (list(untried.receipt_handles), untried.untried) == ([handle(2)], True)


async def test_a_slow_group_does_not_hold_up_the_others(stub: StubConsumeBroker) -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    async def handler(message: AsyncReceivedMessage) -> None:
        seen.append(message.offset)
        if message.offset == 0:
            await gate.wait()

    async with AsyncConsumer(stub.endpoint, "g", "orders", prefetch=40) as consumer:
        running = asyncio.create_task(consumer.run(handler, workers=2))
        session = await stub.session()
        session.deliver(range(10), lease="1.a", message_group="slow")
        session.deliver(range(10, 15), lease="1.b", message_group="other")
        session.deliver(range(15, 20), lease="2.a")
        await stub.until(lambda: len(session.handles("ack")) == 10)
        assert seen == [0, *range(10, 20)]
        # What waits for its turn is still room that is taken.
        assert session.credits <= 40 - 9
        gate.set()
        await stub.until(lambda: len(session.handles("ack")) == 20)
        consumer.stop()
        await running
    assert seen[11:] == list(range(1, 10))


async def test_at_the_end_of_run_what_waited_for_its_turn_goes_back_untried(stub: StubConsumeBroker) -> None:
    async def handler(message: AsyncReceivedMessage) -> None:
        consumer.stop()

    async with AsyncConsumer(stub.endpoint, "g", "orders") as consumer:
        running = asyncio.create_task(consumer.run(handler, workers=3))
        session = await stub.session()
        session.deliver(range(3), message_group="a")
        await running
    assert session.handles("ack") == [handle(0)]
    assert [(list(nack.receipt_handles), nack.untried) for nack in stub.nacks] == [([handle(1)], True)]


def _in_thread(stub: StubConsumeBroker, work: Callable[[Consumer], None]) -> Callable[[], None]:
    def run() -> None:
        with Consumer(stub.endpoint, "g", "orders") as consumer:
            work(consumer)

    return run


@pytest.mark.parametrize("wait", [True, False])
async def test_a_thread_that_nacks_gets_nothing_of_the_group_next(stub: StubConsumeBroker, wait: bool) -> None:
    stored = threading.Event()

    def work(consumer: Consumer) -> None:
        assert stored.wait(10)
        first = next(consumer)
        second = next(consumer)
        assert (first.offset, second.offset) == (0, 1)
        first.ack(wait=False)
        second.nack(wait=wait)
        assert next(consumer).offset == 9

    working = asyncio.create_task(asyncio.to_thread(_in_thread(stub, work)))
    session = await stub.session()
    session.deliver(range(5), message_group="a")
    session.deliver([9], lease="2.a")
    stored.set()
    await working
    assert session.handles("ack") == [handle(0)]
    assert session.handles("nack") == [handle(1)]
    assert [list(nack.receipt_handles) for nack in stub.nacks] == [[handle(9, "2.a")]]


async def test_threads_that_settle_at_once_keep_every_group_in_order() -> None:
    names = [f"g{number}" for number in range(6)]
    failures = {(group, offset): 2 for group in range(6) for offset in (1, 4)}
    work, lock = Work(names, failures), threading.Lock()

    def handler(message: ReceivedMessage) -> None:
        with lock:
            failing = work.fails(message)
        with lock:
            work.over(message)
        if failing:
            raise LookupError("not today")

    async with FifoBroker(names, 20, lease_size=7, part_size=3) as broker:
        consumer = Consumer(broker.endpoint, "g", "orders", prefetch=32)
        running = asyncio.create_task(asyncio.to_thread(consumer.run, handler, 8))
        await broker.until(lambda: broker.done)
        await asyncio.to_thread(consumer.close)
        await running
    assert work.seen == {name: expected(20, number, failures, 1000) for number, name in enumerate(names)}
    assert not broker.refused
    assert not broker.overdrawn
