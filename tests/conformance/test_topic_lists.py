"""Consumers of one group that name different topics, in one batch: each message still goes to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import NotFound
from broker.ports.delivery import Claimed, ClaimWork, JoinWork, NackWork
from broker.storage.delivery import dead_letters
from conformance.world import HOUR, LEASE, World, acks, bodies, ok, receipts, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


@pytest.fixture
async def further(store: Store, topic: Topic, group: ConsumerGroup) -> Topic:
    """A topic that only the newer consumers of the group read."""
    made = await store.create_topic("refunds", TopicSettings(2, HOUR))
    await store.join(JoinWork(group, [topic, made], "newer", {}))
    return made


async def claimed(
    store: Store, group: ConsumerGroup, *lists: Sequence[Topic], limit: int = 2, **rest: bool
) -> list[Claimed]:
    """What consumers with these topics get, all of them in one database transaction."""
    work = [
        ClaimWork(group, topics, f"c{n}", limit, 1 << 20, LEASE, **rest)  # type: ignore[arg-type]
        for n, topics in enumerate(lists)
    ]
    outcomes = await store.claim(work)
    assert all(isinstance(each, Claimed) for each in outcomes), outcomes
    return outcomes  # type: ignore[return-value]


async def fill(store: Store, topic: Topic, count: int, **rest: object) -> None:
    ok(await store.send([sending(topic, f"{topic.name}-{n}", **rest) for n in range(count)]))  # type: ignore[arg-type]


def all_of(outcomes: Sequence[Claimed]) -> list[str]:
    return [body for each in outcomes for body in bodies(each.parts)]


async def test_each_message_goes_to_one_of_them(
    store: Store, topic: Topic, further: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 9)
    await fill(store, further, 4)
    got: list[str] = []
    lists = [[topic], [topic, further], [topic], [further, topic], [further]]
    while some := all_of(outcomes := await claimed(store, group, *lists)):
        assert {m.topic for part in outcomes[0].parts for m in part.messages} <= {"orders"}
        got += some
    assert sorted(got) == sorted([f"orders-{n}" for n in range(9)] + [f"refunds-{n}" for n in range(4)])


@pytest.mark.parametrize("one_by_one", [False, True])
async def test_a_message_group_keeps_its_order(
    store: Store, topic: Topic, further: Topic, group: ConsumerGroup, one_by_one: bool
) -> None:
    await fill(store, topic, 15, message_group="customer")
    got: list[str] = []
    lists = [[topic], [topic, further], [further, topic], [topic]]
    while parts := [
        part for each in await claimed(store, group, *lists, limit=5, one_by_one=one_by_one) for part in each.parts
    ]:
        got += bodies(parts)
        assert len(parts) == 1, "the message group is in one pair of hands"
        ok(await store.settle(acks(parts)))
    assert got == [f"orders-{n}" for n in range(15)]


async def test_the_higher_priority_comes_first(store: Store, group: ConsumerGroup) -> None:
    urgent = await store.create_topic("urgent", TopicSettings(1, HOUR, priority_levels=2))
    calm = await store.create_topic("calm", TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [urgent, calm], "c", {}))
    high = max(range(len(urgent.priorities)), key=lambda n: urgent.priorities[n])
    await fill(store, calm, 3)
    await fill(store, urgent, 3, queue_no=high)
    first, second, third, fourth = await claimed(store, group, [calm, urgent], [urgent, calm], [calm], [calm, urgent])
    assert bodies(first.parts) == ["urgent-0", "urgent-1"]
    assert bodies(second.parts) == ["urgent-2", "calm-0"]
    assert (bodies(third.parts), bodies(fourth.parts)) == (["calm-1", "calm-2"], [])


async def test_what_is_due_is_taken_once_and_by_those_who_read_it(
    world: World, store: Store, topic: Topic, further: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 6)
    await fill(store, further, 6)
    held = await claimed(store, group, *([[topic, further]] * 6))
    assert len(all_of(held)) == 12
    world.clock.pass_time(LEASE)
    lists = [[topic], [further], [topic, further], [topic], [further, topic], [further], [topic]]
    again: list[Claimed] = []
    while all_of(some := await claimed(store, group, *lists)):
        again += some
        for outcome, topics in zip(some, lists, strict=True):
            assert {m.topic for part in outcome.parts for m in part.messages} <= {each.name for each in topics}
    assert sorted(all_of(again)) == sorted(all_of(held))
    assert {part.attempt for each in again for part in each.parts} == {2}
    ok(await store.settle(acks(part for each in again for part in each.parts)))
    assert world.count("lease") == 0


async def test_many_leases_due_on_another_topic_are_in_nobodys_way(
    world: World, store: Store, topic: Topic, further: Topic, group: ConsumerGroup
) -> None:
    """More than one look finds, and all of them older."""
    await fill(store, further, 100)
    for _ in range(100):
        await claimed(store, group, [further], limit=1)
    world.clock.pass_time(1)
    await fill(store, topic, 1)
    await claimed(store, group, [topic], limit=1)
    world.clock.pass_time(LEASE)
    newer, older = await claimed(store, group, [further, topic], [topic], limit=1)
    assert (len(bodies(newer.parts)), bodies(older.parts)) == (1, ["orders-0"])


async def test_a_paused_group_gets_nothing(store: Store, topic: Topic, further: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 3)
    paused = await store.pause_group(group, paused=True, reason="")
    outcomes = await claimed(store, paused, [topic], [topic, further])
    assert [(each.parts, each.more) for each in outcomes] == [([], False)] * 2


async def test_a_filter_holds_for_all_of_them(store: Store, topic: Topic) -> None:
    choosy = await store.create_group("choosy", GroupSettings(3), TopicSettings(1, HOUR))
    further = await store.create_topic("refunds", TopicSettings(1, HOUR))
    red = compile_filter(FilterKind.TAG, "red")
    await store.join(JoinWork(choosy, [topic, further], "c", {topic.topic_id: red}))
    for n in range(12):
        ok(await store.send([sending(topic, f"orders-{n}", tag="red" if n % 2 else "blue")]))
    await fill(store, further, 3)
    got: list[str] = []
    while some := all_of(await claimed(store, choosy, [topic], [topic, further], [further, topic], [topic])):
        got += some
    assert sorted(got) == sorted([f"orders-{n}" for n in range(1, 12, 2)] + [f"refunds-{n}" for n in range(3)])


async def test_a_deleted_topic_fails_those_who_name_it(
    store: Store, topic: Topic, further: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 3)
    await store.delete_topic(further)
    work = [
        ClaimWork(group, topics, "c", 2, 1 << 20, LEASE) for topics in ([topic], [topic, further], [further], [topic])
    ]
    first, second, third, fourth = await store.claim(work)
    assert isinstance(first, Claimed)
    assert isinstance(fourth, Claimed)
    assert (bodies(first.parts), bodies(fourth.parts)) == (["orders-0", "orders-1"], ["orders-2"])
    assert isinstance(second, NotFound)
    assert isinstance(third, NotFound)


async def test_who_is_refused_half_way_holds_nothing(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first lease is taken over, its second one cannot be given up: nobody would ever receive the first."""
    await fill(store, topic, 2)
    (held,) = await claimed(store, group, [topic])
    for _ in range(group.settings.max_attempts - 1):
        ok(await store.settle([NackWork(receipts(held.parts)[-1], delay=0)]))
        (held,) = await claimed(store, group, [topic])
    world.clock.pass_time(LEASE)
    real = dead_letters.move

    def gone(*_: object) -> object:
        raise NotFound("The topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topics")

    monkeypatch.setattr(dead_letters, "move", gone)
    work = [ClaimWork(group, [topic], name, 2, 1 << 20, LEASE) for name in ("a", "b")]
    outcomes = await store.claim(work)
    assert [type(each) for each in outcomes] == [NotFound, NotFound]
    assert world.count("lease", "owner = 'a' OR owner = 'b'") == 0
    monkeypatch.setattr(dead_letters, "move", real)
    assert [bodies(each.parts) for each in await claimed(store, group, [topic])] == [["orders-0"]]
