"""Purging dead letters: the oldest ones go, those that come meanwhile stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.topic import TopicSettings
from broker.errors import NotFound
from broker.ports.groups import DeadLetterSearch, Purge
from broker.storage.retention import purging
from conformance.world import HOUR, bury

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World


async def left(store: Store, group: ConsumerGroup) -> list[str]:
    page = await store.find_dead_letters(DeadLetterSearch(group))
    return [entry.message.body.decode() for entry in page.entries]


async def test_all_that_are_there(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "b1", "a2")
    counted = await store.purge_dead_letters(Purge(tired, dry_run=True))
    assert (counted.deleted, counted.end, counted.done) == (3, 3, True)
    assert await left(store, tired) == ["a1", "b1", "a2"]
    purged = await store.purge_dead_letters(Purge(tired))
    assert (purged.deleted, purged.end, purged.done) == (3, 3, True)
    assert await left(store, tired) == []
    again = await store.purge_dead_letters(Purge(tired))
    assert (again.deleted, again.done) == (0, True)
    await bury(store, tired, topic, "c1")
    assert await left(store, tired) == ["c1"]


async def test_up_to_an_offset(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "b1", "a2")
    assert (await store.purge_dead_letters(Purge(tired, 2, dry_run=True))).deleted == 2
    assert (await store.purge_dead_letters(Purge(tired, 2))).deleted == 2
    assert await left(store, tired) == ["a2"]
    assert (await store.purge_dead_letters(Purge(tired, 1))).deleted == 0


async def test_up_to_a_time(world: World, store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1")
    world.clock.pass_time(10)
    limit = world.clock.now()
    await bury(store, tired, topic, "b1")
    assert (await store.purge_dead_letters(Purge(tired, before=limit, dry_run=True))).deleted == 1
    assert (await store.purge_dead_letters(Purge(tired, before=limit))).deleted == 1
    assert await left(store, tired) == ["b1"]


async def test_in_steps(
    store: Store,
    topic: Topic,
    tired: ConsumerGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(purging, "CHUNK", 2)
    await bury(store, tired, topic, "a1", "b1", "a2")
    first = await store.purge_dead_letters(Purge(tired))
    assert (first.deleted, first.end, first.done) == (2, 3, False)
    # What comes meanwhile is not meant.
    await bury(store, tired, topic, "c1")
    last = await store.purge_dead_letters(Purge(tired, first.end))
    assert (last.deleted, last.done) == (1, True)
    assert await left(store, tired) == ["c1"]


async def test_the_size_of_the_topic_and_its_first_offset_follow(
    store: Store,
    topic: Topic,
    tired: ConsumerGroup,
) -> None:
    await bury(store, tired, topic, "a1", "b1", "a2")
    await store.purge_dead_letters(Purge(tired, 2))
    letters = await store.find_topic(dead_letter_topic(tired.name))
    assert letters is not None
    (state,) = await store.queue_states(letters, None)
    assert (state.min_offset, state.max_offset, state.stored_bytes) == (2, 3, 2)


async def test_without_a_dead_letter_topic(store: Store, tired: ConsumerGroup) -> None:
    letters = await store.find_topic(dead_letter_topic(tired.name))
    assert letters is not None
    await store.delete_topic(letters)
    with pytest.raises(NotFound) as refused:
        await store.purge_dead_letters(Purge(tired))
    assert (refused.value.reason, refused.value.field) == ("TOPIC_NOT_FOUND", "group")


async def test_what_became_a_dead_letter_in_another_topic_of_the_name_stays(
    store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a", "b", "c")
    first = await store.purge_dead_letters(Purge(tired, 2))
    assert first.deleted == 2
    letters = await store.find_topic(dead_letter_topic(tired.name))
    assert letters is not None
    await store.delete_topic(letters)
    await store.create_topic(letters.name, TopicSettings(1, HOUR))
    await bury(store, tired, topic, "d", "e", "f")
    again = await store.purge_dead_letters(Purge(tired, 3, topic_id=first.topic_id))
    assert (again.deleted, again.done) == (0, True)
    assert (await store.purge_dead_letters(Purge(tired, dry_run=True))).deleted == 3
