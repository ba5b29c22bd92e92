from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from broker.wire import turns as module
from broker.wire.turns import (
    AT_A_TIME,
    AT_ONCE,
    BESIDE_FEW,
    HERE_FOR,
    IN_SECONDS,
    LONGEST_PAUSE,
    OFTEN,
    SLOW,
    Line,
    Turns,
)

MANY = 50


class Clock:
    """A time that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(clock=clock)


class Caller:
    """A client, whose calls last until they are told to end."""

    def __init__(self, turns: Turns, name: str) -> None:
        self.turns, self.line = turns, Line(name)
        self.begun: list[int] = []
        self.calls: list[asyncio.Task[None]] = []
        self.end = asyncio.Event()

    def call(self) -> asyncio.Task[None]:
        self.calls.append(asyncio.ensure_future(self._call(len(self.calls))))
        return self.calls[-1]

    async def _call(self, number: int) -> None:
        with self.turns.turn(self.line) as turn:
            if turn.waits:
                await turn.begin()
            self.begun.append(number)
            await self.end.wait()


async def steps(clock: Clock, count: int = 5) -> None:
    """Lets calls that wait go on, with all the time that they may need."""
    for _ in range(count):
        clock.now += LONGEST_PAUSE
        await asyncio.sleep(2 * module.STEP)


async def test_who_is_alone_waits_for_nobody(turns: Turns) -> None:
    alone = Caller(turns, "alone")
    for _ in range(MANY):
        alone.call()
    await asyncio.sleep(0)
    assert len(alone.begun) == MANY
    alone.end.set()
    await asyncio.gather(*alone.calls)
    assert not alone.line.at_work


async def test_beside_others_a_few_begin_at_a_time_and_in_order(turns: Turns, clock: Clock) -> None:
    greedy, polite = Caller(turns, "greedy"), Caller(turns, "polite")
    for _ in range(OFTEN):
        polite.call()
    for _ in range(MANY):
        greedy.call()
    await asyncio.sleep(0)
    assert len(greedy.begun) == AT_ONCE
    await steps(clock)
    # Most of those before have to end first.
    assert len(greedy.begun) == AT_ONCE
    polite.call()
    await asyncio.sleep(0)
    assert len(polite.begun) == OFTEN + 1
    while len(greedy.begun) < MANY:
        before = len(greedy.begun)
        greedy.end.set()
        await asyncio.sleep(0)
        greedy.end.clear()
        polite.call()
        await steps(clock)
        assert 0 < len(greedy.begun) - before <= AT_A_TIME
    assert greedy.begun == list(range(MANY))
    for each in (greedy, polite):
        each.end.set()
        await asyncio.gather(*each.calls)
        assert (each.line.at_work, list(each.line.waiting)) == ({}, [])
    assert not turns._lines


async def test_calls_one_after_the_other_do_not_wait(turns: Turns, clock: Clock) -> None:
    Caller(turns, "other").call()
    one = Caller(turns, "one")
    one.end.set()
    for _ in range(MANY):
        await asyncio.wait_for(one.call(), 10)
        clock.now += IN_SECONDS / AT_ONCE
    assert len(one.begun) == MANY


async def test_when_the_others_are_gone_all_go_on(turns: Turns, clock: Clock) -> None:
    greedy = Caller(turns, "greedy")
    other = Caller(turns, "other")
    other.end.set()
    await other.call()
    for _ in range(MANY):
        greedy.call()
    await steps(clock)
    assert len(greedy.begun) == BESIDE_FEW
    for _ in range(3):
        clock.now += HERE_FOR
        greedy.call()
        await steps(clock, 1)
    assert len(greedy.begun) == MANY + 3


async def test_a_call_that_waits_for_something_gives_up_its_place(turns: Turns, clock: Clock) -> None:
    slow, other = Caller(turns, "slow"), Caller(turns, "other")
    for _ in range(OFTEN):
        other.call()
    for _ in range(3 * AT_A_TIME):
        slow.call()
    await steps(clock)
    assert len(slow.begun) == AT_ONCE
    clock.now += SLOW
    await steps(clock)
    assert len(slow.begun) == AT_ONCE + AT_A_TIME
    slow.end.set()
    await steps(clock)
    await asyncio.gather(*slow.calls)
    assert slow.line.at_work == {}


async def test_calls_that_are_given_up_leave_nothing(turns: Turns, clock: Clock) -> None:
    greedy, other = Caller(turns, "greedy"), Caller(turns, "other")
    for _ in range(OFTEN):
        other.call()
    for _ in range(MANY):
        greedy.call()
    await steps(clock)
    for each in greedy.calls:
        each.cancel()
    for each in greedy.calls:
        with suppress(asyncio.CancelledError):
            await each
    assert (greedy.line.at_work, list(greedy.line.waiting)) == ({}, [])
    await steps(clock)
    assert not turns._lines
    assert turns._next_step is None


async def test_one_that_is_given_up_as_it_may_begin_lets_the_others_go_on(turns: Turns, clock: Clock) -> None:
    greedy, other = Caller(turns, "greedy"), Caller(turns, "other")
    for _ in range(OFTEN):
        other.call()
    for _ in range(MANY):
        greedy.call()
    greedy.end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    greedy.end.clear()
    clock.now += LONGEST_PAUSE
    turns._step()
    assert (len(greedy.begun), len(greedy.line.at_work)) == (AT_ONCE, AT_A_TIME)
    # They may begin, and none has yet.
    greedy.calls[AT_ONCE].cancel()
    with suppress(asyncio.CancelledError):
        await greedy.calls[AT_ONCE]
    await asyncio.sleep(0)
    assert greedy.begun == [*range(AT_ONCE), *range(AT_ONCE + 1, AT_ONCE + AT_A_TIME)]
    greedy.end.set()
    await steps(clock, MANY)
    assert len(greedy.begun) == MANY - 1
