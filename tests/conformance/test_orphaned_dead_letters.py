"""Dead letter topics of deleted groups go: when nothing is in them, nobody reads them, and their time has passed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from broker.storage.groups import groups
from broker.storage.retention import topic_deletion
from conformance.interleaving import Pause, ending, waits_or_ends
from conformance.world import HOUR, bury

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World

LETTERS = TopicSettings(1, HOUR)


async def names(store: Store) -> set[str]:
    return {topic.name for topic in await store.list_topics("", 1000)}


async def sweep(store: Store) -> list[int]:
    """What a round of retention finds and does."""
    found = await store.orphaned_dead_letters(0, 10)
    for topic_id in found:
        await store.delete_orphaned(topic_id)
    return found


async def test_it_goes_when_its_retention_has_passed(world: World, store: Store, tired: ConsumerGroup) -> None:
    letters = dead_letter_topic(tired.name)
    world.clock.pass_time(11 * HOUR)
    assert await sweep(store) == []  # Its group is there.
    await store.delete_group(tired)
    assert len(await sweep(store)) == 1
    assert letters not in await names(store)
    assert await sweep(store) == []


async def test_a_new_one_stays_for_its_retention(world: World, store: Store) -> None:
    group = await store.create_group("short-lived", GroupSettings(), LETTERS)
    await store.delete_group(group)
    world.clock.pass_time(HOUR - 1)
    assert await sweep(store) == []
    world.clock.pass_time(1)
    assert len(await sweep(store)) == 1


async def test_dead_letters_are_kept_until_they_expire(
    world: World, store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    world.clock.pass_time(11 * HOUR)
    await bury(store, tired, topic, "a1")
    await store.delete_group(tired)
    assert await sweep(store) == []
    letters = await store.find_topic(dead_letter_topic(tired.name))
    assert letters is not None
    world.clock.pass_time(letters.retention)
    await store.trim_queue(letters, letters.queue_ids[0])
    assert await sweep(store) == [letters.topic_id]
    assert letters.name not in await names(store)


async def test_one_that_somebody_reads_stays(
    world: World, store: Store, group: ConsumerGroup, tired: ConsumerGroup
) -> None:
    letters = await store.find_topic(dead_letter_topic(tired.name))
    assert letters is not None
    await store.join(JoinWork(group, [letters], "reader", {}))
    await store.delete_group(tired)
    world.clock.pass_time(11 * HOUR)
    await sweep(store)
    assert letters.name in await names(store)


async def test_a_group_that_is_made_meanwhile_has_its_topic(
    world: World, store: Store, tired: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.broker()
    await store.delete_group(tired)
    world.clock.pass_time(11 * HOUR)
    (topic_id,) = await store.orphaned_dead_letters(0, 10)
    pause = Pause(monkeypatch, topic_deletion, "delete_topic")
    deleting = asyncio.ensure_future(store.delete_orphaned(topic_id))
    await pause.reached()
    making = asyncio.ensure_future(other.create_group(tired.name, GroupSettings(), LETTERS))
    await waits_or_ends(world, making)
    pause.go_on()
    await ending(deleting)
    await ending(making)
    other.forget_topics([dead_letter_topic(tired.name)])
    assert dead_letter_topic(tired.name) in await names(other)


async def test_one_of_a_group_that_was_made_meanwhile_stays(
    world: World, store: Store, tired: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.broker()
    await store.delete_group(tired)
    world.clock.pass_time(11 * HOUR)
    (topic_id,) = await store.orphaned_dead_letters(0, 10)
    pause = Pause(monkeypatch, groups, "_must_find")
    making = asyncio.ensure_future(other.create_group(tired.name, GroupSettings(), LETTERS))
    await pause.reached()
    deleting = asyncio.ensure_future(store.delete_orphaned(topic_id))
    await waits_or_ends(world, deleting)
    pause.go_on()
    await ending(making)
    await ending(deleting)
    assert dead_letter_topic(tired.name) in await names(store)
