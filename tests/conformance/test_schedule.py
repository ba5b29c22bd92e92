"""Delay and schedule: messages wait in a table of their own until their time, then go into the log in its order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.place import Scheduled
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists
from broker.ports.transactions import Half, PrepareWork, TransactionOutcome
from broker.ports.upkeep import Moved
from broker.storage.catalog.directory import Directory
from broker.storage.log import schedule
from conformance.world import (
    HOUR,
    START,
    World,
    commit,
    decided,
    everywhere,
    half,
    log_of,
    new_id,
    of,
    ok,
    rollback,
    sending,
    stored_bytes_are_exact,
    vanished,
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

SOON, LATER = START + 10 * SECOND, START + 20 * SECOND


async def prepared(store: Store, halves: list[Half]) -> bytes:
    transaction_id = new_id()
    group = await store.producer_group_id("shop")
    ok(await store.prepare([PrepareWork(transaction_id, group, halves)]))
    return transaction_id


async def texts(store: Store, topic: Topic, queue_no: int = 0) -> list[str]:
    return [message.body.decode() for message in await log_of(store, topic, queue_no)]


async def places(store: Store, transaction_id: bytes) -> list[tuple[int, int]]:
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert detail.op is not None
    return list(detail.op.released)


async def test_a_message_waits_for_its_time(world: World, store: Store, topic: Topic) -> None:
    later = sending(topic, "later", deliver_at=SOON, tag="t", keys=("k",), properties={"a": "ä"})
    outcomes = await store.send([later, sending(topic, "now"), sending(topic, "past", deliver_at=START - 1)])
    queue_id = topic.queue_ids[0]
    assert outcomes == [Scheduled(SOON, topic.topic_id), (queue_id, 0), (queue_id, 1)]
    assert await texts(store, topic) == ["now", "past"]
    assert await store.move_due() == Moved(next_due=SOON)
    world.clock.pass_time(10 * SECOND - 1)
    assert await store.move_due() == Moved(next_due=SOON)
    assert await places(store, later.message_id) == [Scheduled(SOON, topic.topic_id)]
    world.clock.pass_time(1)
    assert await store.move_due() == Moved(1, end_offsets={(topic.topic_id, queue_id): 3})
    message = (await log_of(store, topic))[-1]
    assert (message.body, message.tag, message.keys) == (b"later", "t", ["k"])
    assert message.properties == {"a": "ä", "halfmq.deliver-at": str(SOON)}
    assert (message.born_at, message.stored_at, message.transaction_id) == (START, SOON, later.message_id)
    assert await places(store, later.message_id) == [(queue_id, 2)]
    assert world.count("scheduled_message") == 0
    assert await store.move_due() == Moved()
    assert await store.send([later]) == [(queue_id, 2)], "sent again, it tells where it went"
    stored_bytes_are_exact(world)


async def test_a_send_again_does_not_wait_twice(world: World, store: Store, topic: Topic) -> None:
    work = sending(topic, deliver_at=SOON)
    assert await store.send([work]) == await world.broker("b").send([work]) == [Scheduled(SOON, topic.topic_id)]
    assert world.count("scheduled_message") == 1
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 1
    assert (await world.broker("c").move_due()).count == 0


async def test_a_commit_releases_what_is_due_and_schedules_the_rest(world: World, store: Store, topic: Topic) -> None:
    halves = [
        half(topic, "now"),
        half(topic, "later", deliver_at=LATER, keys=("k",)),
        half(topic, "soon", deliver_at=SOON),
        half(topic, "past", deliver_at=START - SECOND),
    ]
    transaction_id = await prepared(store, halves)
    queue_id = topic.queue_ids[0]
    outcome = await decided(store, commit(transaction_id))
    expected = [(queue_id, 0), Scheduled(LATER, topic.topic_id), Scheduled(SOON, topic.topic_id), (queue_id, 1)]
    assert list(outcome.released) == expected
    assert list((await decided(store, commit(transaction_id))).released) == expected
    assert await texts(store, topic) == ["now", "past"]
    assert world.count("half_message") == 0
    world.clock.pass_time(10 * SECOND)
    assert await store.move_due() == Moved(1, end_offsets={(topic.topic_id, queue_id): 3}, next_due=LATER)
    waiting = Scheduled(LATER, topic.topic_id)
    assert await places(store, transaction_id) == [(queue_id, 0), waiting, (queue_id, 2), (queue_id, 1)]
    world.clock.pass_time(10 * SECOND)
    assert (await store.move_due()).count == 1
    log = await log_of(store, topic)
    assert [(m.body, m.position, m.born_at, m.stored_at) for m in log] == [
        (b"now", 0, START, START),
        (b"past", 3, START, START),
        (b"soon", 2, START, SOON),
        (b"later", 1, START, LATER),
    ]
    assert await places(store, transaction_id) == [(queue_id, 0), (queue_id, 3), (queue_id, 2), (queue_id, 1)]
    stored_bytes_are_exact(world)


async def test_the_time_runs_from_prepare(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, [half(topic, "late", deliver_at=SOON)])
    world.clock.pass_time(HOUR)
    assert list((await decided(store, commit(transaction_id))).released) == [(topic.queue_ids[0], 0)]
    assert world.count("scheduled_message") == 0


async def test_a_rollback_schedules_nothing(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, [half(topic, "late", deliver_at=SOON), half(topic)])
    await decided(store, rollback(transaction_id))
    assert (world.count("scheduled_message"), world.count("half_message")) == (0, 0)


@pytest.mark.parametrize("passed", [0, 3 * SECOND])
async def test_a_prepare_again_keeps_the_first_time(world: World, store: Store, topic: Topic, passed: int) -> None:
    """A delay that is told again becomes another time."""
    transaction_id, shop = new_id(), await store.producer_group_id("shop")

    def work(body: str, deliver_at: int | None) -> PrepareWork:
        return PrepareWork(transaction_id, shop, [half(topic, body, deliver_at=deliver_at, properties={"a": "b"})])

    ok(await store.prepare([work("x", SOON)]))
    world.clock.pass_time(passed)
    (outcome,) = await store.prepare([work("x", SOON + passed)])
    assert isinstance(outcome, TransactionOutcome), outcome
    for other in (work("y", SOON + passed), work("x", None)):
        assert of(AlreadyExists, (await store.prepare([other]))[0]).reason == "TRANSACTION_ID_REUSED"
    assert list((await decided(store, commit(transaction_id))).released) == [Scheduled(SOON, topic.topic_id)]


async def test_a_prepared_message_shows_its_time(store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, [half(topic, deliver_at=SOON, priority=0)])
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert (detail.halves[0].deliver_at, detail.halves[0].properties) == (SOON, {})


async def test_messages_move_in_the_order_of_their_times(world: World, store: Store, topic: Topic) -> None:
    work = [sending(topic, f"{n}", queue_no=None, deliver_at=START + SECOND * (1 + n % 3)) for n in range(30)]
    ok(await store.send(work))
    world.clock.pass_time(HOUR)
    moved = await store.move_due()
    assert moved.count == 30
    expected = sorted(work, key=lambda item: (item.message.deliver_at or 0, item.message_id))
    assert [m.transaction_id for m in await log_of(store, topic)] == [item.message_id for item in expected]


async def test_message_groups_keep_their_queue_and_others_take_turns(world: World, store: Store) -> None:
    wide = await store.create_topic("wide", TopicSettings(3, HOUR))
    ok(await store.send([sending(wide, f"g{n}", queue_no=2, message_group="g", deliver_at=SOON) for n in range(4)]))
    ok(await store.send([sending(wide, f"n{n}", queue_no=None, deliver_at=SOON) for n in range(4)]))
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 8
    in_group = [m.body.decode() for m in await log_of(store, wide, 2) if m.message_group]
    assert in_group == ["g0", "g1", "g2", "g3"]
    used = [number for number in range(3) if any(not m.message_group for m in await log_of(store, wide, number))]
    assert len(used) == 1, "a batch sticks to one queue of a topic"


async def test_a_move_is_bounded_in_number_and_bytes(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "x" * 100, deliver_at=SOON) for _ in range(10)]))
    world.clock.pass_time(HOUR)
    session = world.session()

    def move(**bounds: int) -> Moved:
        session.begin()
        moved = schedule.move_due(session, world.clock.now(), Directory(), 0, **bounds)
        session.commit()
        return moved

    first = move(at_once=3)
    assert (first.count, first.next_due) == (3, SOON)
    assert move(bytes_at_once=250).count == 2
    assert move(bytes_at_once=1).count == 1, "one always goes"
    assert (move().count, move().count) == (4, 0)
    assert [m.offset for m in await log_of(store, topic)] == list(range(10))
    stored_bytes_are_exact(world)


async def test_what_was_moved_and_rolled_back_is_moved_again(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, f"{n}", deliver_at=SOON, keys=("k",)) for n in range(3)]))
    world.clock.pass_time(HOUR)
    session = world.session()
    session.begin()
    assert schedule.move_due(session, world.clock.now(), Directory(), 0).count == 3
    session.rollback()
    assert (await texts(store, topic), world.count("scheduled_message")) == ([], 3)
    assert (await store.move_due()).count == 3
    assert (await texts(store, topic), world.count("message_key")) == (["0", "1", "2"], 3)


async def test_brokers_that_move_together_move_each_message_once(world: World, store: Store, topic: Topic) -> None:
    brokers = [store, world.broker("b"), world.broker("c")]
    work = [sending(topic, f"{n}", deliver_at=SOON + n % 7) for n in range(2500)]
    for start in range(0, len(work), 500):
        ok(await store.send(work[start : start + 500]))
    world.clock.pass_time(HOUR)
    moved = 0
    while moved < len(work):
        moved += sum(each.count for each in await asyncio.gather(*(broker.move_due() for broker in brokers)))
    log = await log_of(store, topic)
    assert [m.offset for m in log] == list(range(len(work)))
    order = sorted(work, key=lambda item: (item.message.deliver_at or 0, item.message_id))
    assert [m.transaction_id for m in log] == [item.message_id for item in order]
    assert world.count("scheduled_message") == 0
    stored_bytes_are_exact(world)


async def test_one_moves_and_the_others_pass_by(world: World, store: Store, topic: Topic) -> None:
    if world.kind == "sqlite":
        pytest.skip("one writer at a time")
    ok(await store.send([sending(topic, deliver_at=SOON) for _ in range(2)]))
    world.clock.pass_time(HOUR)
    await store.move_due()  # From now on there is a row to lock.
    ok(await store.send([sending(topic, deliver_at=world.clock.now() + 1)]))
    world.clock.pass_time(1)
    holder = world.session()
    holder.begin()
    assert schedule.move_due(holder, world.clock.now(), Directory(), 0).count == 1
    assert await store.move_due() == Moved(busy=True)
    # As when the broker dies.
    holder.rollback()
    assert (await store.move_due()).count == 1


async def test_messages_of_a_deleted_topic_are_dropped(world: World, store: Store, topic: Topic) -> None:
    """They came from a broker of an earlier version."""
    other = world.broker("b")
    gone = await store.create_topic("gone", TopicSettings(1, HOUR))
    ok(await other.send([sending(gone, deliver_at=SOON), sending(topic, "kept", deliver_at=SOON)]))
    vanished(world, gone)
    store.directory.clear()
    world.clock.pass_time(HOUR)
    count = dropped = 0
    for broker in (other, other, store):
        moved = await broker.move_due()
        count, dropped = count + moved.count, dropped + moved.dropped
    assert (count, dropped, world.count("scheduled_message")) == (1, 1, 0)
    assert await texts(store, topic) == ["kept"]


async def test_op_records_of_waiting_messages_stay(world: World, store: Store, topic: Topic) -> None:
    waiting = sending(topic, deliver_at=START + 3 * HOUR)
    ok(await store.send([waiting, sending(topic)]))
    world.clock.pass_time(2 * HOUR)
    assert (await store.trim_ops(HOUR), await store.trim_ops(HOUR)) == (1, 0)
    assert await places(store, waiting.message_id) == [Scheduled(START + 3 * HOUR, topic.topic_id)]
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 1
    assert await store.trim_ops(HOUR) == 1
    assert len(await everywhere(store, topic)) == 2
