"""Topics and groups: names are told apart by their bytes, and nothing in use is deleted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, InvalidArgument, NotFound, Refused
from broker.ports.delivery import JoinWork, NackWork
from broker.ports.epochs import SINK_GROUP
from broker.services import catalog
from broker.storage.catalog import topics
from conformance.world import (
    HOUR,
    World,
    acks,
    bodies,
    commit,
    decided,
    log_of,
    of,
    ok,
    prepared,
    pull,
    receipts,
    sending,
    swept,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

LOOKALIKES = ["Topic", "topic", "TOPIC", "topic_", "topic-", "topi", "%topic", "topic|", "t" * 127]


async def test_a_topic_is_found_as_it_was_made(world: World, store: Store) -> None:
    made = await store.create_topic("orders", TopicSettings(3, HOUR))
    assert (made.name, made.queue_count, made.retention, made.created_at) == ("orders", 3, HOUR, world.clock.now())
    fresh = world.broker("b")
    assert fresh.known_topic("orders") is None
    assert await fresh.find_topic("orders") == made
    assert fresh.known_topic("orders") == made
    assert await fresh.find_topic("other") is None
    for number, queue_id in enumerate(made.queue_ids):
        assert await world.broker("c").find_topic_of_queue(queue_id) == (made, number)
    assert await fresh.find_topic_of_queue(999_999) is None


async def test_a_name_with_a_space_behind_it_is_refused(store: Store) -> None:
    """To some databases it is the same name, to access rules it is not."""
    await store.create_topic("orders", TopicSettings(1, HOUR))
    names = catalog.Catalog(store, store, store, catalog.CatalogConfig())
    assert (await names.current_topic("orders")).name == "orders"
    with pytest.raises(InvalidArgument) as refused:
        await names.current_topic("orders ", "filter.topic")
    assert (refused.value.reason, refused.value.field) == ("NAME_INVALID", "filter.topic")


async def test_names_that_look_alike_are_different_names(store: Store) -> None:
    topics = [await store.create_topic(name, TopicSettings(1, HOUR)) for name in LOOKALIKES]
    groups = [await store.create_group(name[:120], GroupSettings(3), TopicSettings(1, HOUR)) for name in LOOKALIKES]
    producers = [await store.producer_group_id(name[:120]) for name in LOOKALIKES]
    assert len({topic.topic_id for topic in topics}) == len({g.group_id for g in groups}) == len(LOOKALIKES)
    assert len(set(producers)) == len(LOOKALIKES)
    for topic in topics:
        assert await store.find_topic(topic.name) == topic
    for group in groups:
        assert await store.find_group(group.name) == group
    assert [await store.producer_group_id(name[:120]) for name in LOOKALIKES] == producers


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_a_name_is_taken_once(world: World, store: Store, what: str) -> None:
    make = {
        "topic": lambda broker: broker.create_topic("same", TopicSettings(2, HOUR)),
        "group": lambda broker: broker.create_group("same", GroupSettings(3), TopicSettings(1, HOUR)),
    }[what]
    brokers = [store, world.broker("b"), world.broker("c")]
    made = await asyncio.gather(*(make(broker) for broker in brokers * 3), return_exceptions=True)
    assert sum(isinstance(each, AlreadyExists) for each in made) == len(made) - 1, made
    assert world.count("queue") == (2 if what == "topic" else 1)


async def test_a_producer_group_has_one_number(world: World, store: Store) -> None:
    brokers = [store, world.broker("b")]
    numbers = await asyncio.gather(*(broker.producer_group_id("shop") for broker in brokers * 5))
    assert len(set(numbers)) == 1


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_lists_by_name_in_pages(store: Store, size: int) -> None:
    names = ["B", "a", "b", "c-1", "c_1"]
    for name in reversed(names):
        await store.create_topic(name, TopicSettings(1, HOUR))
        await store.create_group(name, GroupSettings(3), TopicSettings(1, HOUR))
    topics: list[str] = []
    while page := await store.list_topics(topics[-1] if topics else "", size):
        topics += [topic.name for topic in page]
    groups: list[str] = []
    while groups_page := await store.list_groups(groups[-1] if groups else "", size):
        groups += [group.name for group in groups_page]
    assert groups == names
    assert topics == sorted([*names, *(f"%DLQ%{name}" for name in names)])


async def test_a_deleted_topic_is_gone(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    for _ in range(3):
        ok(await store.send([sending(topic) for _ in range(500)]))
    kept = await store.create_topic("kept", TopicSettings(1, HOUR))
    ok(await store.send([sending(kept)]))
    await store.delete_topic(topic)
    assert await store.find_topic("orders") is None
    assert await world.broker("b").find_topic_of_queue(topic.queue_ids[0]) is None
    assert world.count("message") == 1501, "the messages went in the short transaction"
    await swept(store)
    assert (world.count("message"), world.count("queue"), world.count("group_progress")) == (1, 2, 0)
    with pytest.raises(NotFound):
        await store.delete_topic(topic)
    again = await store.create_topic("orders", TopicSettings(1, HOUR))
    assert await log_of(store, again) == []
    await store.join(JoinWork(group, [again], "consumer", {}))
    ok(await store.send([sending(again, "new")]))
    assert bodies(await pull(store, group, again)) == ["new"]


async def test_a_topic_with_halves_stays(store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    with pytest.raises(Refused, match="resolve them first") as refused:
        await store.delete_topic(topic)
    assert refused.value.reason == "TOPIC_IN_USE"
    await decided(store, commit(transaction_id))
    assert len(await log_of(store, topic)) == 1
    await store.delete_topic(topic)


async def test_a_topic_with_leases_stays(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic) for _ in range(2)]))
    held = await pull(store, group, topic, limit=1)
    with pytest.raises(Refused) as refused:
        await store.delete_topic(topic)
    assert refused.value.reason == "TOPIC_IN_USE"
    ok(await store.settle(acks(held)))
    (more,) = await pull(store, group, topic)
    assert more.messages[0].offset == 1, "the refused deletion changed the group's progress"
    ok(await store.settle(acks([more])))
    await store.delete_topic(topic)


async def test_a_deleted_group_is_gone(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic) for _ in range(3)]))
    (first, *_) = receipts(await pull(store, group, topic))
    await store.delete_group(group)
    assert await store.find_group("billing") is None
    assert (world.count("lease"), world.count("group_progress")) == (0, 0)
    of(Refused, (await store.settle([NackWork(first)]))[0])
    assert await store.find_topic("%DLQ%billing") is not None
    again = await store.create_group("billing", GroupSettings(5), TopicSettings(1, HOUR))
    assert (again.settings.max_attempts, again.group_id != group.group_id) == (5, True)
    await store.join(JoinWork(again, [topic], "consumer", {}))
    assert len(bodies(await pull(store, again, topic))) == 3


async def test_a_pull_and_the_groups_deletion_leave_no_lease(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    for number in range(15):
        group = await store.create_group(f"g{number}", GroupSettings(3), TopicSettings(1, HOUR))
        await store.join(JoinWork(group, [topic], "consumer", {}))
        ok(await store.send([sending(topic) for _ in range(20)]))
        await asyncio.gather(
            *(pull(store, group, topic, limit=1) for _ in range(5)), other.delete_group(group), return_exceptions=True
        )
    assert world.count("lease") == 0


async def test_a_pull_and_the_topics_deletion_leave_no_lease(world: World, store: Store) -> None:
    other = world.broker("b")
    group = await store.create_group("g", GroupSettings(3), TopicSettings(1, HOUR))
    for number in range(15):
        topic = await store.create_topic(f"t{number}", TopicSettings(1, HOUR))
        await store.join(JoinWork(group, [topic], "consumer", {}))
        ok(await store.send([sending(topic) for _ in range(20)]))
        results = await asyncio.gather(
            pull(store, group, topic, limit=1), other.delete_topic(topic), return_exceptions=True
        )
        gone = await world.broker("c").find_topic(topic.name) is None
        if gone:
            queue_id = topic.queue_ids[0]
            assert world.count("lease", f"queue_id = {queue_id}") == 0, results
            await swept(store)
            assert world.count("message", f"queue_id = {queue_id}") == 0
        else:
            assert isinstance(results[1], Refused)


async def test_progress_of_a_group_over_all_it_joined(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    wide = await store.create_topic("wide", TopicSettings(2, HOUR))
    await store.join(JoinWork(group, [wide], "consumer", {}))
    ok(await store.send([sending(wide, queue_no=1) for _ in range(4)]))
    await pull(store, group, wide, limit=3)
    states = await store.group_progress(group)
    assert [(s.topic, s.queue_no, s.max_offset, s.next_offset, s.in_flight, s.lag) for s in states] == [
        ("orders", 0, 0, 0, 0, 0),
        ("wide", 0, 0, 0, 0, 0),
        ("wide", 1, 4, 3, 3, 4),
    ]
    assert await store.group_progress(await store.create_group("new", GroupSettings(3), TopicSettings(1, HOUR))) == []


async def test_a_producer_group_is_found_and_not_created(world: World, store: Store) -> None:
    assert await store.find_producer_group("shop") is None
    assert world.count("producer_group") == 0
    number = await store.producer_group_id("shop")
    assert [await store.find_producer_group(name) for name in ("shop", "sho", "shopp", "")] == [
        number,
        None,
        None,
        None,
    ]


async def test_producer_groups_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "MAX_PRODUCER_GROUPS", 2)
    first, second = await store.producer_group_id("first"), await store.producer_group_id("second")
    with pytest.raises(Refused) as error:
        await store.producer_group_id("third")
    assert (error.value.reason, error.value.field) == ("TOO_MANY_PRODUCER_GROUPS", "producer_group")
    # Those that there are stay, and sinks have theirs whatever others do.
    assert [await store.producer_group_id(name) for name in ("first", "second")] == [first, second]
    assert await store.producer_group_id(SINK_GROUP) not in {first, second}


async def test_groups_that_somebody_names_are_made_up_to_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a new one at each start would fill the database; operators may make more."""
    monkeypatch.setattr(catalog, "MAX_GROUPS_MADE", 3)
    names = catalog.Catalog(store, store, store, catalog.CatalogConfig(create_groups=True))
    made = [(await names.group(f"named-{number}")).name for number in range(3)]
    with pytest.raises(Refused, match=r"halfmq admin group create") as refused:
        await names.group("one-more")
    assert refused.value.reason == "TOO_MANY_GROUPS"
    assert [(await names.group(name)).name for name in made] == made
    await names.create_group("one-more")
    assert (await names.group("one-more")).name == "one-more"
