"""What a broker remembers of topics: nothing that was read before a change, or that was rolled back."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.topic import TopicChange, TopicSettings
from broker.storage.delivery import dead_letters
from broker.storage.groups import filters
from conformance.world import HOUR, World

if TYPE_CHECKING:
    import pytest

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

ENOUGH = 30


async def test_a_read_of_several_statements_remembers_nothing_older_than_a_change(
    store: Store, group: ConsumerGroup, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.set_filter(group, topic, compile_filter(FilterKind.TAG, "paid"))
    began, changed = threading.Event(), threading.Event()
    first_statement = filters.filters_of

    def and_wait(*given: Any) -> Any:
        found = first_statement(*given)
        began.set()
        assert changed.wait(ENOUGH)
        return found

    store.directory.clear()
    monkeypatch.setattr(filters, "filters_of", and_wait)
    reading = asyncio.create_task(store.filters_of(group))
    assert await asyncio.to_thread(began.wait, ENOUGH)
    grown = await store.update_topic(topic, TopicChange(queue_count=6))
    changed.set()
    await reading
    remembered = store.known_topic(topic.name)
    assert remembered is None or remembered == grown


async def test_a_dead_letter_topic_that_is_rolled_back_is_not_remembered(world: World, store: Store) -> None:
    name = dead_letter_topic("packing")
    session = world.session()
    session.begin()
    made = [dead_letters._target(session, name, HOUR, 0, store.directory) for _ in range(2)]
    assert made[0].topic_id == made[1].topic_id
    session.rollback()
    assert store.known_topic(name) is None
    other = await store.create_topic("payments", TopicSettings(4, HOUR))
    assert store.directory.peek_id(other.topic_id) in {None, other}
