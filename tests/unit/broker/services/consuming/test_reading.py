"""Reading queues by offset."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.message import LogMessage
from broker.errors import InvalidArgument, NotFound
from broker.ports.log import QueueMeasure, QueueSlice
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.reading import QueueReader
from broker.services.wakeups import Wakeups
from unit.broker.services.fakes import FakeNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.topic import Topic

HANGS = 20.0
SECOND = 1_000_000


def found(*offsets: int, end: int | None = None, following: int | None = None) -> QueueSlice[list[LogMessage]]:
    messages = [LogMessage("orders", 0, offset, bytes(16), 0, b"x", None, [], {}, None, 0, 0) for offset in offsets]
    last = max(offsets, default=-1) + 1
    return QueueSlice(messages, 0, last if end is None else end, last if following is None else following)


class Store:
    """Answers as it is told, and notes from which offsets it was asked."""

    def __init__(self, *answers: Callable[[], QueueSlice[list[LogMessage]]]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int]] = []
        self.measured: tuple[int | None, int | None] = (0, 0)

    async def read_queue(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[list[LogMessage]]:
        self.asked.append((offset, limit))
        return self.answers.pop(0)()

    async def read_columns(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[LogColumns]:
        raise NotImplementedError

    async def measure_queue(
        self, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
    ) -> QueueMeasure:
        self.measured = end, max_bytes
        return QueueMeasure(9, 100)


class World:
    def __init__(self, *answers: Callable[[], QueueSlice[list[LogMessage]]]) -> None:
        self.store, self.wakeups = Store(*answers), Wakeups()
        self.reader = QueueReader(self.store, FakeNames("orders").catalog(), self.wakeups, DeliveryConfig())


async def test_what_is_there_comes_at_once() -> None:
    world = World(lambda: found(4, 5))
    piece = await world.reader.read_queue("orders", 0, 4, 0, 60 * SECOND)
    assert [message.offset for message in piece.messages] == [4, 5]
    assert world.store.asked == [(4, 32)]


async def test_no_more_than_a_batch_is_read_at_once() -> None:
    world = World(lambda: found(4))
    await world.reader.read_queue("orders", 0, 4, 100_000, 0)
    assert world.store.asked == [(4, DeliveryConfig().batch_messages)]


async def test_a_message_that_comes_just_after_the_look_ends_the_wait() -> None:
    def nothing_yet() -> QueueSlice[list[LogMessage]]:
        asyncio.get_running_loop().call_soon(world.wakeups.released, {(1, 10): 5})
        return found(end=4, following=4)

    world = World(nothing_yet, lambda: found(4))
    async with asyncio.timeout(HANGS):
        piece = await world.reader.read_queue("orders", 0, 4, 10, 60 * SECOND)
    assert len(piece.messages) == 1


async def test_what_a_filter_does_not_want_is_passed_over_without_a_wait() -> None:
    world = World(lambda: found(end=8, following=6), lambda: found(7))
    async with asyncio.timeout(HANGS):
        await world.reader.read_queue("orders", 0, 4, 10, 60 * SECOND)
    assert [offset for offset, _ in world.store.asked] == [4, 6]


async def test_at_its_end_a_wait_gives_what_there_is() -> None:
    world = World(lambda: found(end=4, following=4))
    assert (await world.reader.read_queue("orders", 0, 4, 10, 0)).messages == []


async def test_a_broker_that_drains_ends_the_wait() -> None:
    world = World(lambda: found(end=4, following=4), lambda: found(end=4, following=4))
    reading = asyncio.ensure_future(world.reader.read_queue("orders", 0, 4, 10, 60 * SECOND))
    await asyncio.sleep(0)
    world.wakeups.drain()
    async with asyncio.timeout(HANGS):
        assert (await reading).messages == []


async def test_no_end_and_no_bound_are_passed_on_as_none() -> None:
    world = World()
    await world.reader.measure_queue("orders", 0, 0, 0, 0)
    assert world.store.measured == (None, None)


@pytest.mark.parametrize(
    ("topic", "queue", "offset", "wait", "field"),
    [
        ("missing", 0, 0, 0, "topic"),
        ("orders", 1, 0, 0, "queue"),
        ("orders", 0, -1, 0, "offset"),
        ("orders", 0, 0, 61 * SECOND, "wait"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(topic: str, queue: int, offset: int, wait: int, field: str) -> None:
    with pytest.raises((InvalidArgument, NotFound)) as refused:
        await World().reader.read_queue(topic, queue, offset, 10, wait)
    assert refused.value.field == field
