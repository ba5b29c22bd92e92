"""What there is in all, as operators see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.group import LATEST, GroupSettings
from broker.domain.ids import uuid7
from broker.domain.topic import TopicSettings
from broker.domain.transaction import VerdictSource
from broker.ports.delivery import JoinWork
from broker.ports.groups import Purge
from broker.ports.log import SendWork
from broker.ports.transactions import PrepareWork
from broker.storage.migrations import newest
from broker.storage.sampling.overview import AGES
from conformance.world import HOUR, POLICY, START, World, bury, commit, half, new_id, ok, sending, text

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

MINUTE = 60_000_000


async def prepare(store: Store, topic: Topic, group: str, *ids: bytes) -> None:
    number = await store.producer_group_id(group)
    ok(await store.prepare([PrepareWork(own, number, [half(topic), half(topic)]) for own in ids]))


def born(age: int) -> bytes:
    return uuid7((START - age) // 1000, new_id()[:10])


async def test_transactions_without_a_verdict_by_group_and_by_age(world: World, store: Store, topic: Topic) -> None:
    ages = [0, MINUTE // 2, 5 * MINUTE, 30 * MINUTE, 30 * MINUTE, 3 * HOUR, 20 * HOUR, 3 * 24 * HOUR, 30 * 24 * HOUR]
    await prepare(store, topic, "shop", *[born(age) for age in ages])
    # One of a producer whose clock is a little ahead, and ids that do not begin with the time.
    await prepare(store, topic, "stall", born(-10_000_000), bytes(15) + b"\1", b"\xf0" * 16)
    found = await store.overview()
    assert {each.producer_group: (each.pending, each.parked) for each in found.pending} == {
        "shop": (9, 0),
        "stall": (3, 0),
    }
    assert [(bucket.up_to, bucket.prepared) for bucket in found.ages] == list(
        zip((*AGES, None), [3, 1, 2, 1, 1, 1, 1], strict=True)
    )
    assert [bucket.parked for bucket in found.ages] == [0] * 7


async def test_parked_ones_are_told_apart(world: World, store: Store, topic: Topic) -> None:
    own = born(5 * MINUTE)
    await prepare(store, topic, "shop", own, born(5 * MINUTE))
    group = await store.producer_group_id("shop")
    for _ in range(POLICY.max_checks + 1):
        world.clock.pass_time(POLICY.interval)
        await store.claim_checks([group], POLICY, 10)
    assert len(await store.park_exhausted(1)) == 1
    found = await store.overview()
    (shop,) = found.pending
    assert (shop.pending, shop.parked) == (1, 1)
    assert [(bucket.prepared, bucket.parked) for bucket in found.ages if bucket.parked or bucket.prepared] == [(1, 1)]
    ok(await store.decide([commit(own, VerdictSource.OPERATOR)]))
    assert sum(bucket.prepared + bucket.parked for bucket in (await store.overview()).ages) == 1


async def test_messages_topics_and_groups(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a1", "b1")
    later = sending(topic, "later", deliver_at=world.clock.now() + HOUR)
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text("12345")), later]))
    found = await store.overview()
    assert (found.topics, found.consumer_groups, found.scheduled) == (1, 2, 1)
    assert (found.released, found.stored, found.dead_letters) == (5, 5, 2)
    assert found.stored_bytes == 2 * 2 + 2 * 2 + 5
    assert found.time == world.clock.now()
    assert found.database.startswith(("SQLite", "MariaDB", "MySQL"))
    assert found.schema_version == newest()


async def test_dead_letters_by_group_those_with_most_first(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a1", "b1")
    weary = await store.create_group("weary", GroupSettings(1), TopicSettings(1, HOUR))
    await store.join(JoinWork(weary, [topic], "consumer", {}, start_at=LATEST))
    await bury(store, weary, topic, "c1", "d1", "e1")
    found = await store.overview()
    # A group without dead letters is not listed.
    assert [(each.consumer_group, each.kept) for each in found.dead_letters_by_group] == [("weary", 3), (tired.name, 2)]
    assert (found.dead_letter_groups, found.dead_letters) == (2, 5)
    purged = await store.purge_dead_letters(Purge(weary))
    assert purged.deleted == 3
    found = await store.overview()
    assert [(each.consumer_group, each.kept) for each in found.dead_letters_by_group] == [(tired.name, 2)]


async def test_the_oldest_recorded_verdict_is_told(world: World, store: Store, topic: Topic) -> None:
    assert (await store.overview()).oldest_op is None
    own = born(0)
    await prepare(store, topic, "shop", own)
    decided = world.clock.now()
    ok(await store.decide([commit(own)]))
    world.clock.pass_time(HOUR)
    assert (await store.overview()).oldest_op == decided


async def test_nothing_at_all(store: Store) -> None:
    await store.create_group("idle", GroupSettings(1), TopicSettings(1, HOUR))
    found = await store.overview()
    assert (list(found.pending), found.topics, found.released, found.stored_bytes) == ([], 0, 0, 0)
