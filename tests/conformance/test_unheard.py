"""Work that takes effect although its caller was told that the database does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import BrokerError, StorageUnavailable
from broker.ports.delivery import ClaimWork, JoinWork
from broker.storage.adapters import access
from broker.storage.engine import group_commit
from broker.storage.engine.batches import BatchRunner
from broker.storage.engine.group_commit import LaneConfig
from conformance.interleaving import LateCommit, wait_in_work
from conformance.world import HOUR, LEASE, World, acks, bodies, ok, pull, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Claimed
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
ENOUGH = 60.0


async def soon(store: Store, group: ConsumerGroup, topic: Topic) -> tuple[list[str], int]:
    """What a consumer gets as soon as there is something, and at which attempt; no lease runs out meanwhile."""
    async with asyncio.timeout(ENOUGH):
        while not (delivered := await pull(store, group, topic)):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    return bodies(delivered), delivered[0].attempt


@pytest.mark.parametrize("message_group", [None, "g"])
async def test_what_is_claimed_too_late_is_free_at_once(
    world: World, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch, message_group: str | None
) -> None:
    sender = world.broker("a")
    for module in (group_commit, access):
        monkeypatch.setattr(module, "LATE", 0.1)
        monkeypatch.setattr(module, "SHORTEST_TIMEOUT", 0.1)
    store = world.broker("b", lanes=LaneConfig(reconnect_timeout=0.2))
    async with asyncio.timeout(ENOUGH):
        while True:  # Connecting may take longer than it has patience.
            with contextlib.suppress(StorageUnavailable):
                assert await pull(store, group, topic) == []
                break
    ok(await sender.send([sending(topic, body, message_group=message_group) for body in ("a", "b")]))
    entered, go_on = threading.Event(), threading.Event()
    real = store._claims._runner._work

    def work(session: Session, items: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        outcomes = real(session, items)
        entered.set()
        wait_in_work(go_on)
        return outcomes

    monkeypatch.setattr(store._claims._runner, "_work", work)
    async with asyncio.timeout(ENOUGH):
        while not entered.is_set():  # On a busy machine it may give up before its work has begun.
            with pytest.raises(StorageUnavailable):
                await pull(store, group, topic)
    go_on.set()
    assert await soon(store, group, topic) == (["a", "b"], 1)


@pytest.mark.parametrize("arrives", ["at once", "late"])
async def test_what_was_claimed_when_the_connection_was_lost_for_good_is_free_at_once(
    world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    """The COMMIT took effect; then patience was over."""
    if world.kind == "sqlite":
        arrives = "at once"  # It lets nobody in before.
    late = LateCommit(world, monkeypatch)
    store = world.broker("b", lanes=LaneConfig(reconnect_timeout=0.0))
    group = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic, "a")]))
    late._armed = True
    with pytest.raises(StorageUnavailable):
        await store.claim([ClaimWork(group, [topic], "consumer", 10, 1 << 20, LEASE)])
    if arrives == "late":
        assert await pull(store, group, topic) == []
    late._connection.commit()
    late._connection.close()
    assert await soon(store, group, topic) == (["a"], 1)


@SERVERS
async def test_an_ack_is_not_refused_because_its_own_commit_came_later_than_its_batch_was_given_up(
    world: World, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its items then ran by themselves, and knew nothing of the COMMIT in doubt."""
    store = world.broker("b", lanes=LaneConfig(reconnect_timeout=3.0))
    group = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic, "a", message_group="g"), sending(topic, "b", message_group="h")]))
    work = acks(await pull(store, group, topic))
    assert len(work) == 2
    late = LateCommit(world, monkeypatch)
    alone = threading.Event()
    real = BatchRunner._run_alone

    def run_alone(runner: BatchRunner[object, object], *rest: object) -> object:
        alone.set()
        return real(runner, *rest)

    monkeypatch.setattr(BatchRunner, "_run_alone", run_alone)
    late._armed = True
    settling = asyncio.ensure_future(store.settle(work))
    async with asyncio.timeout(ENOUGH):
        while not alone.is_set() and not settling.done():  # noqa: ASYNC110 - either will do
            await asyncio.sleep(0.02)
        late._connection.commit()
        late._connection.close()
        with pytest.raises(StorageUnavailable):
            ok(await settling)
    assert world.count("lease") == 0


@SERVERS
async def test_a_lane_that_is_closed_answers_what_it_holds(world: World, topic: Topic) -> None:
    store = world.broker("b")
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (topic.queue_ids[0],))
    sent = asyncio.ensure_future(store.send([sending(topic)]))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    world.forget(store)
    async with asyncio.timeout(ENOUGH):
        while not store._sends._held:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        holder.rollback()
        ok(await sent)
        await closing
