"""Messages of message groups that retention deletes: what is left goes on, in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import ClaimWork, JoinWork, NackWork
from broker.storage.delivery import plan
from broker.storage.log.ranges import messages_at
from conformance.message_groups import send
from conformance.world import HOUR, LEASE, World, ack, acks, bodies, ok, pull, receipts

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store


async def test_retention_frees_a_group(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, "a1")
    await pull(store, group, topic)
    world.clock.pass_time(HOUR)
    await send(store, topic, "a2")
    assert await pull(store, group, topic) != []  # a1, taken over
    await send(store, topic, "a3")
    await pull(store, group, topic)
    while await store.trim_queue(topic, topic.queue_ids[0]):
        pass
    world.clock.pass_time(LEASE)
    assert await pull(store, group, topic) == []  # Nothing is left of a1's lease.
    held = await pull(store, group, topic)
    assert bodies(held) == ["a2", "a3"]
    ok(await store.settle(acks(held)))
    assert world.count("lease") == 0


async def queued_over_the_edge_of_retention(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, limit: int = 10
) -> list[Delivered]:
    """What is queued in one lease behind a0: five messages that are gone then, and what is delivered of the rest."""
    await send(store, topic, "a0")
    held = await pull(store, group, topic, lease_time=3 * HOUR)
    for n in range(1, 9):
        await send(store, topic, f"a{n}")
        assert await pull(store, group, topic) == []
        if n == 5:
            world.clock.pass_time(HOUR)
    while await store.trim_queue(topic, topic.queue_ids[0]):
        pass
    assert world.count("lease") == 2
    ok(await store.settle(acks(held)))
    got = await pull(store, group, topic, limit=limit)
    assert (bodies(got), got[0].attempt) == (["a6", "a7", "a8"][:limit], 1)
    return got


async def test_what_retention_deleted_of_a_queued_lease_keeps_the_group_waiting_no_longer(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    got = await queued_over_the_edge_of_retention(world, store, topic, group)
    ok(await store.settle(acks(got)))
    await send(store, topic, "a9")
    assert bodies(await pull(store, group, topic)) == ["a9"]


async def test_a_consumer_without_room_is_given_what_is_left_of_a_queued_lease_bit_by_bit(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    got = await queued_over_the_edge_of_retention(world, store, topic, group, limit=1)
    ok(await store.settle(acks(got)))
    assert bodies(await pull(store, group, topic)) == ["a7", "a8"]


async def test_a_head_that_retention_deleted_leaves_the_next_one_all_its_attempts(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1")
    world.clock.pass_time(HOUR)
    await send(store, topic, "a2")
    held = await pull(store, group, topic)
    assert bodies(held) == ["a1", "a2"]
    ok(await store.settle([NackWork(receipts(held)[0], delay=0, reason="bad")]))
    while await store.trim_queue(topic, topic.queue_ids[0]):
        pass
    (left,) = await pull(store, group, topic)
    assert (bodies([left]), left.attempt, left.last_error) == (["a2"], 1, None)


async def test_what_retention_deleted_of_a_queued_lease_gives_its_head_no_further_attempts(
    world: World, store: Store, topic: Topic
) -> None:
    group = await store.create_group("three", GroupSettings(3, (0,)), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    got = await queued_over_the_edge_of_retention(world, store, topic, group)
    for attempt in (2, 3):
        ok(await store.settle([NackWork(receipts(got)[0], reason="bad")]))
        got = await pull(store, group, topic)
        assert (bodies(got), got[0].attempt) == (["a6", "a7", "a8"], attempt)
    head, *rest = receipts(got)
    (outcome,) = await store.settle([NackWork(head, reason="bad")])
    assert outcome.dead_letter is not None  # type: ignore[union-attr]
    ok(await store.settle([ack(receipt) for receipt in rest]))
    assert world.count("lease") == 0


async def test_a_message_that_is_gone_when_it_is_handed_out_does_not_block_what_was_queued_behind_it(
    store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who take one message at a time; retention deletes the first one after it was examined."""
    await send(store, topic, "a1", "a2", "a3")
    with monkeypatch.context() as patch:
        patch.setattr(plan, "messages_at", lambda queue_id, _: messages_at(queue_id, [99]))
        work = ClaimWork(group, [topic], "consumer", 10, 1 << 20, LEASE, one_by_one=True)
        await store.claim([work])
    assert bodies(await pull(store, group, topic)) == ["a2", "a3"]


async def test_messages_that_are_gone_when_they_are_handed_out_keep_the_group_waiting_no_longer(
    store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes the first two after they were examined, and not the third."""
    await send(store, topic, "a1", "a2", "a3")
    with monkeypatch.context() as patch:
        patch.setattr(plan, "messages_at", lambda queue_id, offsets: messages_at(queue_id, offsets[2:]))
        held = await pull(store, group, topic)
    assert bodies(held) == ["a3"]
    await send(store, topic, "a4")
    assert await pull(store, group, topic) == []
    ok(await store.settle(acks(held)))
    assert bodies(await pull(store, group, topic)) == ["a4"]
