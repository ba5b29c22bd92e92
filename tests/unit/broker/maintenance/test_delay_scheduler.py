"""The scheduler's rounds: it wakes when something is due, moves until nothing is, and looks now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.maintenance.delay_scheduler import BUSY_PAUSE, DelayScheduler
from broker.ports.upkeep import Moved
from broker.services.wakeups import Wakeups

if TYPE_CHECKING:
    import pytest

SECOND = 1_000_000


class FakeStore:
    """Answers as it is told to, and notes how it was asked."""

    def __init__(self, *answers: Moved) -> None:
        self.answers = list(answers)
        self.calls: list[bool] = []
        self.asked = asyncio.Event()

    async def move_due(self, *, known: bool = False) -> Moved:
        self.calls.append(known)
        self.asked.set()
        return self.answers.pop(0) if self.answers else Moved()


class Clock:
    """The loop's own time, so that what is due is due."""

    def __init__(self) -> None:
        self.offset = 0

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * SECOND) + self.offset


async def asked_within(store: FakeStore, seconds: float) -> bool:
    store.asked.clear()
    try:
        async with asyncio.timeout(seconds):
            await store.asked.wait()
    except TimeoutError:
        return False
    return True


async def test_moves_until_nothing_is_due_and_wakes_who_waits() -> None:
    clock, wakeups = Clock(), Wakeups()
    now = clock.now()
    store = FakeStore(Moved(2, end_offsets={(1, 7): 2}, next_due=now), Moved(1, end_offsets={(2, 8): 5}), Moved())
    scheduler = DelayScheduler(store, wakeups, clock)
    with wakeups.listen([1]) as one, wakeups.listen([2]) as two, wakeups.listen([3]) as three:
        await scheduler.run_once()
        assert (one.is_set(), two.is_set(), three.is_set()) == (True, True, False)
    assert store.calls == [False, True], "what is known to be due is not looked for"


async def test_it_wakes_for_the_earliest() -> None:
    clock = Clock()
    store = FakeStore()
    scheduler = DelayScheduler(store, Wakeups(), clock, look_interval=3600)
    scheduler.start()
    assert await asked_within(store, 5)
    now = clock.now()
    scheduler.expect(now + 3600 * SECOND)
    scheduler.expect(now + SECOND // 20)
    scheduler.expect(now + 1800 * SECOND)
    assert await asked_within(store, 5)
    assert clock.now() >= now + SECOND // 20
    await scheduler.stop()


async def test_what_the_database_tells_sets_the_timer() -> None:
    clock = Clock()
    store = FakeStore(Moved(next_due=clock.now() + SECOND // 20))
    scheduler = DelayScheduler(store, Wakeups(), clock, look_interval=3600)
    scheduler.start()
    assert await asked_within(store, 5)
    assert await asked_within(store, 5)
    await scheduler.stop()


async def test_while_another_broker_moves_it_looks_again_soon() -> None:
    clock = Clock()
    scheduler = DelayScheduler(FakeStore(Moved(busy=True), Moved()), Wakeups(), clock, look_interval=3600)
    await scheduler.run_once()
    assert scheduler.interval == BUSY_PAUSE
    await scheduler.run_once()
    assert scheduler.interval == 3600


async def test_dropped_messages_are_told(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = DelayScheduler(FakeStore(Moved(dropped=3)), Wakeups(), Clock())
    with caplog.at_level(logging.WARNING):
        await scheduler.run_once()
    assert "3 scheduled messages were dropped" in caplog.text


async def test_what_is_taken_in_while_messages_are_moved_is_not_late() -> None:
    clock = Clock()
    store = FakeStore()
    scheduler = DelayScheduler(store, Wakeups(), clock, look_interval=3600)

    async def move_due(*, known: bool = False) -> Moved:
        scheduler.expect(clock.now() + SECOND // 10)
        return await FakeStore.move_due(store, known=known)

    store.answers = [Moved(next_due=clock.now() + 3600 * SECOND)]
    store.move_due = move_due  # type: ignore[method-assign]
    scheduler.start()
    assert await asked_within(store, 5)
    assert await asked_within(store, 2), "the message that came meanwhile is due first"
    await scheduler.stop()
