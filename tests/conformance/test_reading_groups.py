"""Groups that read by offset: what they say of their progress, and what retention spares for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupMode, GroupSettings
from broker.domain.topic import TopicChange, TopicSettings
from broker.errors import Refused
from broker.ports.delivery import JoinWork
from conformance.world import HOUR, LEASE, World, acks, log_of, ok, pull, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def fill(store: Store, topic: Topic, count: int) -> None:
    ok(await store.send([sending(topic, f"m{number}") for number in range(count)]))


async def make(store: Store, name: str = "readers", **settings: object) -> ConsumerGroup:
    return await store.create_group(name, GroupSettings(**settings), TopicSettings(queue_count=1))  # type: ignore[arg-type]


async def progress(store: Store, topic: Topic, group: ConsumerGroup) -> tuple[int, int]:
    (state,) = await store.queue_states(topic, group)
    return state.committed_offset, state.lag


async def test_progress_is_noted_forwards_and_backwards(store: Store, topic: Topic) -> None:
    await fill(store, topic, 10)
    group = await make(store)
    for told, kept in ((0, 0), (7, 7), (3, 3), (10, 10), (99, 10)):
        await store.commit_offsets(group, topic, {topic.queue_ids[0]: told})
        assert await progress(store, topic, group) == (kept, 10 - kept)


async def test_a_group_with_leases_is_refused(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 4)
    delivered = await pull(store, group, topic)
    with pytest.raises(Refused) as refused:
        await store.commit_offsets(group, topic, {topic.queue_ids[0]: 2})
    assert refused.value.reason == "GROUP_HAS_LEASES"
    ok(await store.settle(acks(delivered)))
    await store.commit_offsets(group, topic, {topic.queue_ids[0]: 2})
    assert await progress(store, topic, group) == (2, 2)


async def test_a_broadcasting_group_is_refused(store: Store, topic: Topic) -> None:
    group = await make(store, mode=GroupMode.BROADCASTING)
    with pytest.raises(Refused) as refused:
        await store.commit_offsets(group, topic, {topic.queue_ids[0]: 0})
    assert refused.value.reason == "GROUP_BROADCASTING"


@pytest.mark.parametrize("keep_unread", [True, False])
async def test_retention_spares_what_a_group_has_not_read(
    world: World, store: Store, topic: Topic, keep_unread: bool
) -> None:
    (queue_id,) = topic.queue_ids
    await fill(store, topic, 10)
    keeping = await make(store, "keeping", keep_unread=keep_unread)
    quick = await make(store, "quick", keep_unread=keep_unread)
    await store.commit_offsets(keeping, topic, {queue_id: 4})
    await store.commit_offsets(quick, topic, {queue_id: 10})
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, queue_id) == (4 if keep_unread else 10)
    assert await store.trim_queue(topic, queue_id) == 0
    await store.commit_offsets(keeping, topic, {queue_id: 9})
    assert await store.trim_queue(topic, queue_id) == (5 if keep_unread else 0)
    assert [message.offset for message in await log_of(store, topic)] == ([9] if keep_unread else [])


async def test_the_bound_of_bytes_spares_it_too(world: World, store: Store, topic: Topic) -> None:
    (queue_id,) = topic.queue_ids
    ok(await store.send([sending(topic, "x" * 100) for _ in range(10)]))
    bounded = await store.update_topic(topic, TopicChange(retention_bytes=200))
    group = await make(store, keep_unread=True)
    await store.commit_offsets(group, topic, {queue_id: 5})
    assert await store.trim_topic(bounded) == 5
    assert await store.trim_topic(bounded) == 0
    await store.update_group(group, {"keep_unread": 0})
    assert await store.trim_topic(bounded) == 3


async def test_what_is_leased_is_not_read(world: World, store: Store, topic: Topic) -> None:
    await fill(store, topic, 6)
    group = await make(store, keep_unread=True)
    await store.join(JoinWork(group, [topic], "me", {}))
    first = await pull(store, group, topic, limit=2)
    second = await pull(store, group, topic, limit=3)
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 0
    ok(await store.settle(acks(first)))
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 2
    assert second[0].expires_at < world.clock.now() - LEASE
    assert [message.offset for message in await log_of(store, topic)] == [2, 3, 4, 5]


async def test_every_member_of_a_broadcasting_group_counts(world: World, store: Store, topic: Topic) -> None:
    group = await make(store, mode=GroupMode.BROADCASTING, keep_unread=True, start_at=0)
    await fill(store, topic, 6)
    members = [await store.join(JoinWork(group, [topic], name, {})) for name in ("slow", "quick")]
    ok(await store.settle(acks(await pull(store, members[1], topic))))
    ok(await store.settle(acks(await pull(store, members[0], topic, limit=1))))
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 1
    found = await store.find_group("readers")
    assert found is not None
    assert found.settings == group.settings
