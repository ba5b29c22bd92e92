"""A change that waits for a row, or takes long, holds up nobody who does not need what it needs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.group import EARLIEST
from broker.domain.topic import TopicSettings
from broker.errors import RowsLocked
from broker.ports.epochs import Epoch
from broker.storage.adapters import delivery
from broker.storage.adapters.access import CHANGE_THREADS, EPOCH_THREADS, FORWARDING_THREADS, LONG_EPOCH_THREADS
from broker.storage.catalog.directory import Directory
from conformance.interleaving import PATIENCE, ending, waits_or_ends
from conformance.world import HOUR, World, ack, acks, log_of, ok, pull, receipts, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@SERVERS
async def test_look_ups_go_on(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic)]))
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT 1 FROM consumer_group WHERE group_id = ? FOR UPDATE", (group.group_id,))
    changes = [
        asyncio.ensure_future(store.seek_group(group, topic.queue_ids, to=EARLIEST, offset=None))
        for _ in range(CHANGE_THREADS + 1)
    ]
    await waits_or_ends(world, changes[0])
    store.directory = Directory()
    # Nobody lets the changes go on, so that these can only go past them.
    assert await store.find_topic("orders") is not None
    assert len(await log_of(store, topic)) == 1
    assert not any(change.done() for change in changes)
    holder.rollback()
    for change in changes:
        await ending(change)


@SERVERS
async def test_epochs_of_other_sinks_go_on(world: World, store: Store) -> None:
    names = [f"held{number}" for number in range(EPOCH_THREADS + LONG_EPOCH_THREADS)]
    for name in (*names, "free"):
        await store.commit_epoch(Epoch(name, "query", 0, False), {})
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT 1 FROM sink WHERE name LIKE 'held%' FOR UPDATE")
    waiting = [asyncio.ensure_future(store.commit_epoch(Epoch(name, "query", 1, False), {})) for name in names]
    await waits_or_ends(world, waiting[0])
    for number in range(1, 4):
        await ending(asyncio.ensure_future(store.commit_epoch(Epoch("free", "query", number, False), {})))
        assert not any(each.done() for each in waiting)
    holder.rollback()
    for each in waiting:
        assert not (await ending(each)).already


@SERVERS
async def test_small_sends_with_acks_go_past_large_ones(
    store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "LARGE_FORWARD", 10)
    count = FORWARDING_THREADS + 1
    ok(await store.send([sending(topic, f"{number}") for number in range(count + 1)]))
    received = acks(await pull(store, group, topic))
    go_on = threading.Event()
    real = delivery.forwarding.send_and_ack

    def slow(session: Any, work: Sequence[Any], *given: Any, **named: Any) -> Any:
        if work[0].size >= 10:
            assert go_on.wait(PATIENCE)
        return real(session, work, *given, **named)

    monkeypatch.setattr(delivery.forwarding, "send_and_ack", slow)
    large = [
        asyncio.ensure_future(store.send_and_ack([sending(topic, "x" * 10)], received[number : number + 1]))
        for number in range(count)
    ]
    await asyncio.sleep(0)
    await ending(asyncio.ensure_future(store.send_and_ack([sending(topic, "small")], received[count:])))
    assert not any(each.done() for each in large)
    go_on.set()
    for each in large:
        await ending(each)


@SERVERS
async def test_a_caller_that_left_keeps_its_turn_while_a_thread_works_for_it(world: World, store: Store) -> None:
    await store.commit_epoch(Epoch("held", "query", 0, False), {})
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT 1 FROM sink WHERE name = 'held' FOR UPDATE")
    left = asyncio.ensure_future(store.abort_epoch(Epoch("held", "query", 1, False)))
    await waits_or_ends(world, left)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    # It would get a second thread for the same row.
    following = asyncio.ensure_future(store.abort_epoch(Epoch("held", "query", 1, False)))
    for number in range(1, 4):
        await ending(asyncio.ensure_future(store.abort_epoch(Epoch("free", "query", number, False))))
    assert len(store._long_epoch_slots._parties["held"].since) == 1
    assert not following.done()
    holder.rollback()
    assert await ending(following) is False


@SERVERS
async def test_sends_with_acks_of_others_do_not_stand_behind_those_that_wait(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    count = 4 * FORWARDING_THREADS
    ok(await store.send([sending(topic, f"{number}") for number in range(count)]))
    received = [ack(each) for each in receipts(await pull(store, group, topic))]
    assert len(received) == count
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT 1 FROM lease FOR UPDATE")
    waiting = [asyncio.ensure_future(store.send_and_ack([sending(topic, "waits")], [each])) for each in received]
    # It came last, and is next: nothing here depends on how fast the machine is.
    await ending(asyncio.ensure_future(store.send_and_ack([sending(other, "goes on")], [])))
    assert sum(not each.done() for each in waiting) > count // 2
    holder.rollback()
    for each in waiting:
        with suppress(RowsLocked):
            await ending(each)
