"""What a broker remembers of groups does not grow with those that were there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import JoinWork
from broker.storage.delivery import group_views
from conformance.world import HOUR, pull

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from conformance.world import World

LETTERS = TopicSettings(1, HOUR)


async def read(store: Store, other: Store, topic: Topic, name: str) -> None:
    """A group that one broker makes, and whose consumer is at the other one."""
    group = await store.create_group(name, GroupSettings(), LETTERS)
    await other.join(JoinWork(group, [topic], "consumer", {}))
    await pull(other, group, topic)


async def test_groups_that_were_deleted_elsewhere_are_forgotten(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_views, "LEAST_DROPPED", 5)
    other = world.broker("other")
    await read(store, other, topic, "lasting")
    for number in range(20):
        await read(store, other, topic, f"visitor-{number}")
        found = await store.find_group(f"visitor-{number}")
        assert found is not None
        await store.delete_group(found)
        assert len(other.groups._views) <= 5
    assert next(view.group.name for view in other.groups._views.values()) == "lasting"


async def test_groups_that_are_there_stay(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_views, "LEAST_DROPPED", 5)
    other = world.broker("other")
    for number in range(20):
        await read(store, other, topic, f"reader-{number}")
    assert len(other.groups._views) == 20
