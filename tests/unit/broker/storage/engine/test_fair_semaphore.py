"""Turns at what few can do at a time: nobody waits for long behind one who uses much of it."""

from __future__ import annotations

import asyncio

import pytest

from broker.errors import StorageUnavailable
from broker.storage.engine.fair_semaphore import FairSemaphore


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class Rig:
    """Work that takes as long as it is said to; one piece of it ends at a time."""

    def __init__(self, at_once: int = 1) -> None:
        self.clock = Clock()
        self.slots = FairSemaphore(at_once, self.clock)
        self.done: list[str] = []
        self.under_way: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def begin(self, name: str) -> asyncio.Task[None]:
        """`name` is the party, and behind a dot whatever tells its pieces apart."""
        self._ends[name] = asyncio.Event()
        return asyncio.create_task(self._work(name))

    async def _work(self, name: str) -> None:
        async with self.slots.turn(name.split(".", maxsplit=1)[0]):
            self.under_way.append(name)
            await self._ends[name].wait()
            self.under_way.remove(name)
            self.done.append(name)

    async def end(self, name: str, seconds: float) -> None:
        await asyncio.sleep(0)
        assert name in self.under_way, (name, self.under_way)
        self.clock.time += seconds
        self._ends[name].set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_who_had_least_is_next_however_long_the_queue() -> None:
    rig = Rig()
    tasks = [rig.begin(f"greedy.{n}") for n in range(20)]
    await rig.end("greedy.0", 5.0)
    tasks.append(rig.begin("polite"))
    await rig.end("greedy.1", 5.0)
    await rig.end("polite", 0.01)
    tasks.append(rig.begin("polite.again"))
    # It had less than the one that is at work, who is not interrupted.
    await rig.end("greedy.2", 5.0)
    await rig.end("polite.again", 0.01)
    for n in range(3, 20):
        await rig.end(f"greedy.{n}", 1.0)
    await asyncio.gather(*tasks)
    assert not rig.slots._parties


async def test_many_greedy_ones_make_nobody_wait_for_all_of_them() -> None:
    rig = Rig(at_once=2)
    tasks = [rig.begin(f"greedy {n}.{m}") for m in range(3) for n in range(20)]
    await rig.end("greedy 0.0", 1.0)
    await rig.end("greedy 1.0", 1.0)
    tasks.append(rig.begin("polite"))
    for n in range(2, 20):
        if "polite" in rig.under_way:
            break
        await rig.end(f"greedy {n}.0", 1.0)
    # It came last of twenty who had nothing yet; behind none of them twice.
    await rig.end("polite", 0.01)
    tasks.append(rig.begin("polite.again"))
    (first, *_) = list(rig.under_way)
    await rig.end(first, 1.0)
    assert "polite.again" in rig.under_way
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not rig.slots._parties


async def test_nobody_saves_turns_up() -> None:
    rig = Rig()
    tasks = [rig.begin("old.0")]
    await rig.end("old.0", 1.0)
    tasks += [rig.begin(f"busy.{n}") for n in range(4)]
    await rig.end("busy.0", 10.0)
    tasks += [rig.begin(f"new.{n}") for n in range(3)]
    await rig.end("busy.1", 10.0)
    # It came when the other one had had 20 s, and has as many behind it.
    await rig.end("new.0", 10.0)
    order = []
    while rig.under_way:
        (name,) = rig.under_way
        order.append(name.split(".")[0])
        await rig.end(name, 10.0)
    assert order[:3] in (["busy", "new", "busy"], ["new", "busy", "new"], ["busy", "new", "new"])
    await asyncio.gather(*tasks)


async def test_who_leaves_while_waiting_and_as_its_turn_comes_takes_nothing_along() -> None:
    rig = Rig()
    first, second, third = (rig.begin(name) for name in ("a", "b", "c"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third.cancel()
    await rig.end("a", 1.0)
    with pytest.raises(asyncio.CancelledError):
        await third
    await first
    fourth, fifth = rig.begin("d"), rig.begin("e")
    await asyncio.sleep(0)
    rig.clock.time += 1
    rig._ends["d"].set()
    await asyncio.sleep(0)
    # Its turn has been given, and it has not noticed yet.
    fifth.cancel()
    await asyncio.gather(fourth, fifth, return_exceptions=True)
    sixth = rig.begin("f")
    await rig.end("f", 1.0)
    await sixth
    assert not rig.slots._parties


async def test_closing_sends_away_who_waits_and_who_comes() -> None:
    rig = Rig()
    first, second = rig.begin("a"), rig.begin("b")
    await asyncio.sleep(0)
    rig.slots.close()
    with pytest.raises(StorageUnavailable):
        await second
    with pytest.raises(StorageUnavailable):
        await rig.begin("c")
    await rig.end("a", 1.0)
    await first
