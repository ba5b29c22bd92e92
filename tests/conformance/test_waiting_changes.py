"""A change that waits for a row holds up nobody who only looks something up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import EARLIEST
from broker.storage.adapters.access import CHANGE_THREADS
from broker.storage.catalog.directory import Directory
from conformance.interleaving import ending, waits_or_ends
from conformance.world import World, log_of, ok, sending

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
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
