"""A caller's patience ends, wherever what it handed in is by then."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import TopicSettings
from broker.errors import Overloaded, StorageUnavailable
from broker.storage.adapters import access
from broker.storage.adapters.access import LOOK_UP_THREADS
from broker.storage.engine import group_commit
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.log import log
from conformance.interleaving import wait_in_work
from conformance.world import HOUR, World, log_of, ok, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.ports.log import SendWork
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

ENOUGH = 60.0
PATIENCE = 2.0
"""Long enough for what is to succeed on a busy machine."""


class Blocked:
    """Work in a thread that goes on when it is told to."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.entered.set()
        wait_in_work(self.go)


@pytest.fixture
def impatient(world: World, monkeypatch: pytest.MonkeyPatch) -> Store:
    for module in (group_commit, access):
        monkeypatch.setattr(module, "LATE", 0.1)
        monkeypatch.setattr(module, "SHORTEST_TIMEOUT", 0.1)
    return world.broker("b", lanes=LaneConfig(reconnect_timeout=PATIENCE))


async def test_in_a_lane(impatient: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked()

    def work(session: Session, items: Sequence[SendWork]) -> object:
        blocked.wait()
        return log.send(session, items, impatient.clock.now(), impatient.directory, 0)

    monkeypatch.setattr(impatient._sends._runner, "_work", work)
    async with asyncio.timeout(ENOUGH):
        running = asyncio.ensure_future(impatient.send([sending(topic, "runs")]))
        await asyncio.to_thread(blocked.entered.wait, ENOUGH)
        waiting = asyncio.ensure_future(impatient.send([sending(topic, "waits")]))
        # Nobody lets the thread go on, so only the caller's patience can end this.
        with pytest.raises(StorageUnavailable):
            await running
        with pytest.raises(StorageUnavailable):
            await waiting
        blocked.go.set()
        ok(await impatient.send([sending(topic, "later")]))
    # What had begun took effect; what waited did not.
    assert [message.body for message in await log_of(impatient, topic)] == [b"runs", b"later"]


async def test_too_much_waits_where_others_were_served_meanwhile(
    impatient: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = {b"first": Blocked(), b"second": Blocked()}

    def work(session: Session, items: Sequence[SendWork]) -> object:
        (item,) = items
        if item.message.body in blocked:
            blocked[item.message.body].wait()
        return log.send(session, items, impatient.clock.now(), impatient.directory, 0)

    monkeypatch.setattr(impatient._sends._runner, "_work", work)
    monkeypatch.setattr(impatient._sends, "_config", LaneConfig(max_items=1, reconnect_timeout=PATIENCE))
    async with asyncio.timeout(ENOUGH):
        first, second, third = (
            asyncio.ensure_future(impatient.send([sending(topic, name)])) for name in ("first", "second", "third")
        )
        await asyncio.to_thread(blocked[b"first"].entered.wait, ENOUGH)
        blocked[b"first"].go.set()
        await asyncio.to_thread(blocked[b"second"].entered.wait, ENOUGH)
        with pytest.raises(StorageUnavailable):
            await second
        with pytest.raises(Overloaded):
            await third
        blocked[b"second"].go.set()
        await asyncio.gather(first, return_exceptions=True)


async def test_behind_other_look_ups(impatient: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked()
    async with asyncio.timeout(ENOUGH):
        running = [
            asyncio.ensure_future(impatient._read(lambda session: blocked.wait())) for _ in range(LOOK_UP_THREADS)
        ]
        await asyncio.to_thread(blocked.entered.wait, ENOUGH)
        with pytest.raises(StorageUnavailable):
            await impatient.find_topic("orders")
        cancelled = asyncio.ensure_future(impatient.find_topic("orders"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        blocked.go.set()
        await asyncio.gather(*running)
        assert await impatient.find_topic("orders") is not None


async def test_clean_up_takes_no_thread_of_those_who_wait(world: World, store: Store, topic: Topic) -> None:
    blocked = Blocked()
    async with asyncio.timeout(ENOUGH):
        chores = [asyncio.ensure_future(store._clean(lambda session: blocked.wait())) for _ in range(5)]
        if world.kind != "sqlite":  # There one writer goes at a time.
            await asyncio.to_thread(blocked.entered.wait, ENOUGH)
            await store.create_topic("another", TopicSettings(1, HOUR))
        assert await store.find_topic("orders") is not None
        blocked.go.set()
        await asyncio.gather(*chores)
