"""Filters: what a group does not want costs it nothing and counts as handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import Refused
from broker.ports.delivery import JoinWork, NackWork
from broker.ports.log import SendWork
from conformance.world import HOUR, LEASE, World, ack, acks, bodies, nacks, new_id, ok, pull, receipts, text

if TYPE_CHECKING:
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

RED = compile_filter(FilterKind.TAG, "red")
DEAR = compile_filter(FilterKind.SQL, "price > 10")


async def send(store: Store, topic: Topic, *tags: str, **rest: object) -> None:
    work = []
    for number, tag in enumerate(tags):
        message = text(f"{tag}{number}", topic.name, tag=tag, **rest)
        work.append(SendWork(new_id(), topic.topic_id, 0, message))
    ok(await store.send(work))


async def wanting(store: Store, group: ConsumerGroup, topic: Topic, wanted: Filter, **rest: bool) -> ConsumerGroup:
    return await store.join(JoinWork(group, [topic], "c", {topic.topic_id: wanted}, **rest))


@pytest.fixture
async def choosy(store: Store, topic: Topic) -> ConsumerGroup:
    """A group that wants red ones."""
    made = await store.create_group("choosy", GroupSettings(3), TopicSettings(1, HOUR))
    await wanting(store, made, topic, RED)
    return made


async def test_only_what_is_wanted_comes(store: Store, topic: Topic, choosy: ConsumerGroup) -> None:
    await send(store, topic, "red", "blue", "red", "green", "blue", "red", "blue")
    held = await pull(store, choosy, topic)
    assert bodies(held) == ["red0", "red2", "red5"]
    (state,) = await store.group_progress(choosy)
    assert (state.next_offset, state.in_flight, state.committed_offset) == (7, 3, 0)
    ok(await store.settle(acks(held)))
    (state,) = await store.group_progress(choosy)
    assert (state.lag, state.committed_offset) == (0, 7)


async def test_a_range_without_a_match_leaves_no_trace(
    world: World, store: Store, topic: Topic, choosy: ConsumerGroup
) -> None:
    for _ in range(5):
        await send(store, topic, *["blue"] * 500)
    await send(store, topic, "red")
    assert bodies(await pull(store, choosy, topic, limit=1)) == ["red0"]
    assert world.count("lease") == 1
    (state,) = await store.group_progress(choosy)
    assert state.next_offset == 2501


async def test_limits_count_what_is_wanted(store: Store, topic: Topic, choosy: ConsumerGroup) -> None:
    await send(store, topic, *["blue", "red"] * 20)
    seen: list[str] = []
    while held := await pull(store, choosy, topic, limit=3):
        assert len(bodies(held)) <= 3
        seen += bodies(held)
    assert seen == [f"red{n}" for n in range(1, 40, 2)]
    await send(store, topic, *["red"] * 6)
    assert len(bodies(await pull(store, choosy, topic, max_bytes=9))) == 2


async def test_what_was_given_back_is_not_judged_again(
    world: World, store: Store, topic: Topic, choosy: ConsumerGroup
) -> None:
    await send(store, topic, "red", "blue", "red")
    held = await pull(store, choosy, topic)
    await store.set_filter(choosy, topic, compile_filter(FilterKind.TAG, "blue"))
    ok(await store.settle(nacks(held, delay=0)))
    assert bodies(await pull(store, choosy, topic)) == ["red0", "red2"]
    await send(store, topic, "red", "blue")
    assert bodies(await pull(store, choosy, topic)) == ["blue1"]


async def test_with_message_groups(world: World, store: Store, topic: Topic, choosy: ConsumerGroup) -> None:
    await send(store, topic, "red", "blue", "red", message_group="a")
    await send(store, topic, "red", "blue", message_group="b")
    await send(store, topic, "red", "green")
    held = await pull(store, choosy, topic)
    assert sorted(map(tuple, (bodies([each]) for each in held))) == [("red0",), ("red0",), ("red0", "red2")]
    ordered = next(each for each in held if len(each.messages) == 2)
    one, two = receipts([ordered])
    ok(await store.settle([ack(one), NackWork(two, delay=0)]))
    assert bodies(await pull(store, choosy, topic)) == ["red2"]
    world.clock.pass_time(LEASE)
    assert len(bodies(await pull(store, choosy, topic))) == 3


async def test_sql_over_properties_and_system_fields(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    dear = await store.create_group("dear", GroupSettings(3), TopicSettings(1, HOUR))
    wanted = compile_filter(FilterKind.SQL, "price > 10 AND halfmq.tag = 'red' AND halfmq.\"message_group\" IS NULL")
    await wanting(store, dear, topic, wanted)
    for price in ("9", "11", "none"):
        await send(store, topic, "red", "blue", properties={"price": price})
    await send(store, topic, "red", properties={"price": "12"}, message_group="a")
    assert [m.properties["price"] for each in await pull(store, dear, topic) for m in each.messages] == ["11"]


class TestAgreement:
    """A filter is the group's: two consumers cannot want different things without anybody noticing."""

    async def test_the_same_again_is_fine(
        self, world: World, store: Store, topic: Topic, choosy: ConsumerGroup
    ) -> None:
        await wanting(world.broker("b"), choosy, topic, RED)
        await store.join(JoinWork(choosy, [topic], "other", {}))
        await send(store, topic, "red", "blue")
        assert bodies(await pull(store, choosy, topic)) == ["red0"]

    async def test_those_of_several_groups_are_read_at_once(
        self, store: Store, topic: Topic, choosy: ConsumerGroup, group: ConsumerGroup
    ) -> None:
        assert await store.filters_of_groups([group, choosy]) == [[], [("orders", RED)]]
        assert await store.filters_of_groups([]) == []

    async def test_another_one_is_refused(self, store: Store, topic: Topic, choosy: ConsumerGroup) -> None:
        with pytest.raises(Refused, match="with the filter 'red'") as refused:
            await wanting(store, choosy, topic, DEAR)
        assert (refused.value.reason, refused.value.field) == ("FILTER_CONFLICT", "filters")
        assert await store.filters_of(choosy) == [("orders", RED)]

    async def test_a_group_that_wanted_all_is_not_narrowed_by_a_consumer(
        self, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        with pytest.raises(Refused, match="wants all"):
            await wanting(store, group, topic, RED)

    async def test_it_can_be_replaced_on_purpose(self, store: Store, topic: Topic, choosy: ConsumerGroup) -> None:
        await wanting(store, choosy, topic, DEAR, replace_filters=True)
        assert await store.filters_of(choosy) == [("orders", DEAR)]
        await store.set_filter(choosy, topic, None)
        await send(store, topic, "red", "blue")
        assert len(bodies(await pull(store, choosy, topic))) == 2

    async def test_in_a_broadcasting_group_it_is_everyones(self, store: Store, topic: Topic) -> None:
        group = await store.create_group(
            "all", GroupSettings(mode=GroupMode.BROADCASTING, start_at=0), TopicSettings(1, HOUR)
        )
        ann = await store.join(JoinWork(group, [topic], "ann", {topic.topic_id: RED}))
        bob = await store.join(JoinWork(group, [topic], "bob", {}))
        with pytest.raises(Refused):
            await store.join(JoinWork(group, [topic], "cid", {topic.topic_id: DEAR}))
        await send(store, topic, "red", "blue")
        for member in (ann, bob):
            assert bodies(await pull(store, member, topic)) == ["red0"]


class TestReadingQueues:
    """Reading by offset with a filter."""

    async def test_it_passes_over_the_others(self, store: Store, topic: Topic) -> None:
        await send(store, topic, "red", "blue", "red", "blue", "red", "blue")
        piece = await store.read_queue(topic, 0, 0, 2, 1 << 20, RED)
        assert ([m.body for m in piece.messages], piece.next_offset) == ([b"red0", b"red2"], 4)
        piece = await store.read_queue(topic, 0, piece.next_offset, 2, 1 << 20, RED)
        assert ([m.body for m in piece.messages], piece.next_offset) == ([b"red4"], 6)
        piece = await store.read_queue(topic, 0, 0, 10, 9, RED)
        assert ([m.body for m in piece.messages], piece.next_offset) == ([b"red0", b"red2"], 4)

    async def test_it_leads_on_where_nothing_passes(self, store: Store, topic: Topic) -> None:
        for _ in range(3):
            await send(store, topic, *["blue"] * 500)
        piece = await store.read_queue(topic, 0, 0, 10, 1 << 20, RED)
        assert (piece.messages, piece.next_offset) == ([], 1500)
