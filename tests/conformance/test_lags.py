"""The lag of many groups at once: the same figures as for each group alone, added up by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import ClaimWork, JoinWork
from broker.ports.log import SendWork
from broker.storage.groups import lags as module
from conformance.world import HOUR, LEASE, World, acks, bury, new_id, ok, text

if TYPE_CHECKING:
    import pytest

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.groups import GroupLag
    from broker.storage.adapters.store import Store


async def make_group(store: Store, name: str, *topics: Topic, **settings: object) -> ConsumerGroup:
    made = await store.create_group(name, GroupSettings(**settings), TopicSettings(1, HOUR))  # type: ignore[arg-type]
    if topics and made.settings.mode is not GroupMode.BROADCASTING:
        await store.join(JoinWork(made, topics, "consumer", {}, start_at=EARLIEST))
    return made


async def send(store: Store, topic: Topic, queue_no: int, count: int) -> None:
    ok(await store.send([SendWork(new_id(), topic.topic_id, queue_no, text("x", topic.name)) for _ in range(count)]))


def told(found: GroupLag) -> tuple[str, str, int, int, int]:
    return found.group.name, found.topic, found.queues, found.lag, found.in_flight


async def test_by_group_and_topic(world: World, store: Store) -> None:
    one = await store.create_topic("one", TopicSettings(2, HOUR))
    two = await store.create_topic("two", TopicSettings(1, HOUR))
    first = await make_group(store, "first", one, two)
    second = await make_group(store, "second", one)
    idle = await make_group(store, "idle")
    began = world.clock.now()
    await send(store, one, 0, 3)
    world.clock.pass_time(5)
    await send(store, one, 1, 2)
    (claimed,) = await store.claim([ClaimWork(second, [one], "me", 4, 1 << 20, LEASE)])
    handled = claimed.parts[0]  # type: ignore[union-attr]
    ok(await store.settle(acks([handled])))
    found, count = await store.group_lags([first, idle, second], None)
    assert count == 3
    assert [told(each) for each in found] == [
        ("first", "one", 2, 5, 0),
        ("first", "two", 1, 0, 0),
        ("idle", "", 0, 0, 0),
        ("second", "one", 2, 5 - len(handled.messages), 4 - len(handled.messages)),
    ]
    assert [each.waiting_since for each in found[:2]] == [began, None]
    for group in (first, second):
        states = [state for state in await store.group_progress(group) if state.topic == "one"]
        own = next(each for each in found if each.group == group and each.topic == "one")
        assert own.lag == sum(state.lag for state in states)
        assert own.in_flight == sum(state.in_flight for state in states)
        assert own.waiting_since == min(state.waiting_since for state in states if state.waiting_since is not None)


async def test_of_one_topic(store: Store) -> None:
    one, two = [await store.create_topic(name, TopicSettings(1, HOUR)) for name in ("one", "two")]
    both, other, none = (
        await make_group(store, "both", one, two),
        await make_group(store, "other", two),
        await make_group(store, "none"),
    )
    found, _ = await store.group_lags([both, none, other], one)
    assert [told(each)[:2] for each in found] == [("both", "one")]


async def test_members_of_a_broadcasting_group_are_added_up(store: Store) -> None:
    one = await store.create_topic("one", TopicSettings(2, HOUR))
    group = await make_group(store, "all", mode=GroupMode.BROADCASTING)
    for member in ("ann", "bob", "cid"):
        await store.join(JoinWork(group, [one], member, {}, start_at=EARLIEST))
    await send(store, one, 1, 4)
    (found,), _ = await store.group_lags([group], None)
    assert (*told(found), found.members) == ("all", "one", 2, 12, 0, 3)


async def test_dead_letters_are_those_of_the_group_from_all_topics(
    store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    idle = await make_group(store, "idle", topic)
    await bury(store, tired, topic, "a1", "b1")
    found, _ = await store.group_lags([idle, tired], None)
    assert [(each.group.name, each.dead_letters) for each in found] == [("idle", 0), (tired.name, 2)]


async def test_deleted_topics_are_not_listed(store: Store) -> None:
    one = await store.create_topic("one", TopicSettings(1, HOUR))
    group = await make_group(store, "readers", one)
    await store.delete_topic(one)
    (found,), _ = await store.group_lags([group], None)
    assert told(found) == ("readers", "", 0, 0, 0)


async def test_a_page_ends_early_where_there_are_many_members(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_AT_ONCE", 1)
    monkeypatch.setattr(module, "MOST_STATES", 3)
    one = await store.create_topic("one", TopicSettings(2, HOUR))
    groups = [await make_group(store, f"g{number}", one) for number in range(4)]
    found, count = await store.group_lags(groups, None)
    assert (count, [each.group.name for each in found]) == (2, ["g0", "g1"])
