"""Rows that somebody keeps locked hold up what needs them, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.topic import TopicSettings
from broker.errors import StorageUnavailable
from broker.maintenance.retention import RetentionSweeper
from broker.storage.engine.group_commit import LaneConfig
from conformance.world import HOUR, START, World, commit, log_of, new_id, ok, prepared, sending
from support.turns import own_turn

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.session import Session

SERVERS = pytest.mark.parametrize("kind", ["mariadb", "mysql"])
ENOUGH = 60.0


def holding(world: World, *queue_ids: int) -> Session:
    """A session that keeps queues locked until its transaction ends."""
    session = world.session()
    session.begin()
    for queue_id in queue_ids:
        session.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (queue_id,))
    return session


async def bodies(store: Store, topic: Topic, queue_no: int = 0) -> list[bytes]:
    return [message.body for message in await log_of(store, topic, queue_no)]


@SERVERS
async def test_batch_mates_go_on(world: World, store: Store, topic: Topic) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    holder = holding(world, topic.queue_ids[0])
    async with asyncio.timeout(ENOUGH):
        first = asyncio.ensure_future(store.send([sending(other, "0")]))  # What follows is merged behind it.
        held = [asyncio.ensure_future(store.send([sending(topic, f"{n}")])) for n in range(3)]
        mixed = asyncio.ensure_future(store.send([sending(topic, "3"), sending(other, "mate")]))
        for number in range(1, 6):
            ok(await store.send([sending(other, f"{number}")]))
        ok(await first)
        assert not [each for each in (*held, mixed) if each.done()]
        assert b"mate" in await bodies(store, other)
        holder.rollback()
        for each in (*held, mixed):
            ok(await each)
    assert sorted(await bodies(store, topic)) == [b"0", b"1", b"2", b"3"]
    assert len(await bodies(store, other)) == 7


@SERVERS
async def test_one_callers_messages_of_a_queue_keep_their_order(world: World, store: Store, topic: Topic) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    holder = holding(world, topic.queue_ids[0])
    work = [sending(each, f"{number}") for number in range(20) for each in (topic, other)]
    async with asyncio.timeout(ENOUGH):
        sent = asyncio.ensure_future(store.send(work))
        while len(await bodies(store, other)) < 20:
            pass
        holder.rollback()
        ok(await sent)
    expected = [f"{number}".encode() for number in range(20)]
    assert await bodies(store, topic) == await bodies(store, other) == expected


@SERVERS
async def test_another_queue_is_taken(world: World, store: Store) -> None:
    wide = await store.create_topic("wide", TopicSettings(4, HOUR))
    holder = holding(world, *wide.queue_ids[:3])
    async with asyncio.timeout(ENOUGH):
        for _ in range(8):
            ((queue_id, _),) = await store.send([sending(wide, queue_no=None)])
            assert queue_id == wide.queue_ids[3]
    holder.rollback()


@SERVERS
async def test_verdicts_go_on(world: World, store: Store, topic: Topic) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    waiting = [await prepared(store, topic) for _ in range(3)]
    free = [await prepared(store, other) for _ in range(5)]
    holder = holding(world, *topic.queue_ids)
    async with asyncio.timeout(ENOUGH):
        held = [asyncio.ensure_future(store.decide([commit(each)])) for each in waiting]
        for each in free:
            ok(await store.decide([commit(each)]))
        assert not [each for each in held if each.done()]
        holder.rollback()
        for decision in held:
            ok(await decision)
    assert len(await bodies(store, other)) == 5


@SERVERS
async def test_an_id_that_somebody_else_inserts_holds_up_its_own_call(world: World, store: Store, topic: Topic) -> None:
    own_id = new_id()
    holder = world.session()
    holder.begin()
    holder.run(
        "INSERT INTO op_record (transaction_id, state, source, half_count, check_count, prepared_at, decided_at)"
        " VALUES (?, 2, 1, 1, 0, 0, 0)",
        (own_id,),
    )
    async with asyncio.timeout(ENOUGH):
        first = asyncio.ensure_future(store.send([sending(topic, "first")]))
        held = asyncio.ensure_future(store.send([sending(topic, "held", own_id)]))
        mates = [asyncio.ensure_future(store.send([sending(topic, "mate")])) for _ in range(5)]
        for mate in (first, *mates):
            ok(await mate)
        assert not held.done()
        holder.rollback()
        ok(await held)
    assert len(await bodies(store, topic)) == 7


@SERVERS
async def test_what_is_held_for_too_long_fails_alone(world: World, topic: Topic) -> None:
    store = world.broker("b", lanes=LaneConfig(reconnect_timeout=3.0))
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    holder = holding(world, *topic.queue_ids)
    async with asyncio.timeout(ENOUGH):
        held = asyncio.ensure_future(store.send([sending(topic)]))
        while not held.done():
            ok(await store.send([sending(other)]))
    assert isinstance(held.exception(), StorageUnavailable)
    holder.rollback()
    ok(await store.send([sending(topic)]))


@SERVERS
async def test_delayed_messages_of_other_topics_are_moved(world: World, store: Store, topic: Topic) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    soon = itertools.count(START + SECOND)
    ok(await store.send([sending(each, deliver_at=next(soon)) for _ in range(3) for each in (topic, other)]))
    world.clock.pass_time(10 * SECOND)
    holder = holding(world, *topic.queue_ids)
    async with asyncio.timeout(ENOUGH):
        moved = await store.move_due()
        assert moved.count == 3
        assert len(await bodies(store, other)) == 3
        again = await store.move_due()
        assert again.count == 0
        assert again.next_due is not None
        assert again.next_due > world.clock.now(), "it comes again later, not at once"
        holder.rollback()
        assert (await store.move_due()).count == 3


async def test_a_topic_whose_messages_cannot_be_moved_holds_up_no_other(
    world: World, store: Store, topic: Topic
) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    ok(await store.send([sending(topic)]))
    soon = itertools.count(START + SECOND)
    ok(await store.send([sending(each, deliver_at=next(soon)) for _ in range(3) for each in (topic, other)]))
    damaged = world.session()
    damaged.begin()
    damaged.run("UPDATE message SET log_offset = log_offset + 1 WHERE queue_id = ?", (topic.queue_ids[0],))
    damaged.commit()
    world.clock.pass_time(10 * SECOND)
    moved = await store.move_due()
    assert moved.count == 3
    assert len(await bodies(store, other)) == 3
    later = await store.move_due()
    assert (later.count, later.busy) == (0, False)
    assert later.next_due is not None
    assert later.next_due > world.clock.now()
    ok(await store.send([sending(other, deliver_at=world.clock.now() + 1)]))
    world.clock.pass_time(1)
    assert (await store.move_due()).count == 1


@SERVERS
async def test_a_queue_that_is_held_starves_no_retention(world: World, store: Store) -> None:
    topics = [await store.create_topic(name, TopicSettings(2, HOUR)) for name in ("a", "b", "c")]
    gone = [await store.create_topic(name, TopicSettings(1, HOUR)) for name in ("x", "y")]
    for each in (*topics, *gone):
        ok(await store.send([sending(each)]))
    old = await prepared(store, topics[0])
    ok(await store.decide([commit(old)]))
    for each in gone:
        await store.delete_topic(each)
    world.clock.pass_time(2 * HOUR)
    holder = holding(world, *topics[0].queue_ids, *gone[0].queue_ids)
    sweeper = RetentionSweeper(store, own_turn(), keep_ops=HOUR, keep_events=HOUR, keep_leftovers=HOUR)
    async with asyncio.timeout(ENOUGH):
        await sweeper.run_once()
    assert [await bodies(store, each) for each in topics[1:]] == [[], []]
    assert await bodies(store, topics[0]) != []
    assert world.count("op_record") == 0
    assert world.count("topic", "deleted_at IS NOT NULL") == 1
    holder.rollback()
    await sweeper.run_once()
    assert await bodies(store, topics[0]) == []
    assert world.count("topic", "deleted_at IS NOT NULL") == 0
