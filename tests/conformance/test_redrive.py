"""Redrive: dead letters go back to their group, each once, where they came from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.dead_letter import Origin
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import EARLIEST, GroupMode, GroupSettings
from broker.domain.topic import TopicSettings
from broker.errors import NotFound, Refused
from broker.ports.delivery import JoinWork
from broker.ports.groups import DeadLetterSearch, Redriven
from broker.ports.log import SendWork
from broker.storage.delivery import redrive as module
from conformance.world import HOUR, LEASE, World, acks, bodies, bury, nacks, new_id, ok, pull, text

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def redriven(store: Store, search: DeadLetterSearch, *, republish: bool = False) -> Redriven:
    """All steps of a redrive, added up."""
    so_far = Redriven()
    first: int | None = search.first
    while first is not None:
        step = await store.redrive(
            DeadLetterSearch(search.group, first, search.wanted, search.offsets), republish=republish
        )
        so_far.examined += step.examined
        so_far.redriven += step.redriven
        so_far.republished += step.republished
        so_far.left += step.left
        first = step.following
    return so_far


async def test_all_go_back_once(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a1", "b1", "a2")
    page = await store.find_dead_letters(DeadLetterSearch(tired))
    assert [(each.message.body, each.origin, each.redriven_at) for each in page.entries] == [
        (name.encode(), Origin("orders", 0, offset, 1, "no a1"), None) for offset, name in enumerate(["a1", "b1", "a2"])
    ]
    assert await redriven(store, DeadLetterSearch(tired)) == Redriven(examined=3, redriven=3)
    held = await pull(store, tired, topic)
    assert (sorted(bodies(held)), {each.attempt for each in held}, held[0].last_error) == (
        ["a1", "a2", "b1"],
        {1},
        "no a1",
    )
    ok(await store.settle(acks(held)))
    assert await redriven(store, DeadLetterSearch(tired)) == Redriven(examined=3, left=3)
    assert await pull(store, tired, topic) == []
    page = await store.find_dead_letters(DeadLetterSearch(tired))
    assert [each.redriven_at for each in page.entries] == [world.clock.now()] * 3
    # Nobody else noticed.
    assert len(bodies(await pull(store, group, topic))) == 3
    assert await pull(store, group, topic) == []


async def test_what_fails_again_can_go_back_again(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1")
    for number in range(1, 4):
        assert (await redriven(store, DeadLetterSearch(tired))).redriven == 1
        ok(await store.settle(nacks(await pull(store, tired, topic), reason=f"still {number}")))
    page = await store.find_dead_letters(DeadLetterSearch(tired))
    assert [each.redriven_at is None for each in page.entries] == [False, False, False, True]
    assert [each.origin.reason for each in page.entries if each.origin] == ["no a1", "still 1", "still 2", "still 3"]
    assert set(page.entries[-1].message.properties) == set(page.entries[0].message.properties)


async def test_a_page_looks_at_a_limited_number(
    store: Store, topic: Topic, tired: ConsumerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_EXAMINED", 100)
    await bury(store, tired, topic, *[f"a{number}" for number in range(249)], "b1")
    search, found, pages = DeadLetterSearch(tired, wanted=compile_filter(FilterKind.TAG, "b")), list[bytes](), 0
    while True:
        page = await store.find_dead_letters(search)
        found += [each.message.body for each in page.entries]
        pages += 1
        if page.following is None:
            break
        search = replace(search, first=page.following)
    assert (found, pages) == ([b"b1"], 3)


async def test_a_redrive_ends_before_what_fails_again_meanwhile(
    store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, *[f"a{number}" for number in range(300)])
    step = await store.redrive(DeadLetterSearch(tired), republish=False)
    assert (step.redriven, step.following, step.end) == (256, 256, 300)
    ok(await store.settle(nacks(await pull(store, tired, topic), reason="still")))
    rest = DeadLetterSearch(tired, 256, end=step.end, topic_id=step.topic_id)
    last = await store.redrive(rest, republish=False)
    assert (last.redriven, last.following, last.total) == (44, None, 300)
    elsewhere = DeadLetterSearch(tired, 0, end=step.end, topic_id=(step.topic_id or 0) + 1000)
    assert (await store.redrive(elsewhere, republish=False)).redriven == 0
    with pytest.raises(Refused, match="created again"):
        await store.find_dead_letters(elsewhere)


async def test_some_by_filter_and_some_by_offset(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "b1", "a2", "c1")
    wanted = compile_filter(FilterKind.TAG, "a")
    assert await redriven(store, DeadLetterSearch(tired, wanted=wanted)) == Redriven(examined=4, redriven=2)
    assert sorted(bodies(await pull(store, tired, topic))) == ["a1", "a2"]
    some = DeadLetterSearch(tired, offsets=frozenset([3, 77]))
    assert (await redriven(store, some)).redriven == 1
    assert bodies(await pull(store, tired, topic)) == ["c1"]
    sql = compile_filter(FilterKind.SQL, "halfmq.\"reason\" LIKE 'no a%' AND halfmq.tag = 'b'")
    assert (await redriven(store, DeadLetterSearch(tired, wanted=sql))).redriven == 1


async def test_pages(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, *[f"{'ab'[n % 2]}{n}" for n in range(300)])
    seen: list[bytes] = []
    first: int | None = 0
    while first is not None:
        page = await store.find_dead_letters(
            DeadLetterSearch(tired, first, compile_filter(FilterKind.TAG, "b"), limit=40)
        )
        assert len(page.entries) <= 40
        seen += [each.message.body for each in page.entries]
        first = page.following
    assert seen == [f"b{n}".encode() for n in range(1, 300, 2)]
    assert await redriven(store, DeadLetterSearch(tired)) == Redriven(examined=300, redriven=300)


async def test_originals_past_retention_stay_unless_they_are_to_be_appended(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a1", keys=("k",), properties={"colour": "red"})
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 1
    assert await redriven(store, DeadLetterSearch(tired)) == Redriven(examined=1, left=1)
    assert await redriven(store, DeadLetterSearch(tired), republish=True) == Redriven(examined=1, republished=1)
    for each in (tired, group):
        (delivered,) = await pull(store, each, topic)
        (message,) = delivered.messages
        assert (message.body, message.keys, message.properties) == (b"a1", ["k"], {"colour": "red"})
    assert await redriven(store, DeadLetterSearch(tired), republish=True) == Redriven(examined=1, left=1)


async def test_a_topic_made_anew_is_not_mistaken(
    world: World, store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    await bury(store, tired, topic, "a1")
    await store.delete_topic(topic)
    assert (await redriven(store, DeadLetterSearch(tired))).left == 1
    again = await store.create_topic("orders", TopicSettings(1, HOUR))
    await store.join(JoinWork(tired, [again], "consumer", {}))
    await bury(store, tired, again, "other")
    assert await redriven(store, DeadLetterSearch(tired)) == Redriven(examined=2, redriven=1, left=1)
    assert bodies(await pull(store, tired, again)) == ["other"]


async def test_message_groups_keep_their_turns(world: World, store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "a2", message_group="a")
    ok(await store.send([SendWork(new_id(), topic.topic_id, 0, text("a3", message_group="a"))]))
    (third,) = await pull(store, tired, topic)
    assert (await redriven(store, DeadLetterSearch(tired))).redriven == 2
    assert await pull(store, tired, topic) == []
    ok(await store.settle(acks([third])))
    for name in ("a1", "a2"):
        (held,) = await pull(store, tired, topic)
        assert bodies([held]) == [name]
        assert await pull(store, tired, topic) == []
        ok(await store.settle(acks([held])))
    assert world.count("lease") == 0


async def test_a_group_moved_back_gets_them_once(store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "a2")
    await store.seek_group(tired, topic.queue_ids, to=EARLIEST, offset=None)
    assert (await redriven(store, DeadLetterSearch(tired))).redriven == 2
    assert bodies(await pull(store, tired, topic)) == ["a1", "a2"]


async def test_a_member_of_a_broadcasting_group_gets_its_own(store: Store, topic: Topic) -> None:
    group = await store.create_group(
        "all", GroupSettings(1, mode=GroupMode.BROADCASTING, start_at=EARLIEST), TopicSettings(1, HOUR)
    )
    ann, bob = [await store.join(JoinWork(group, [topic], name, {})) for name in ("ann", "bob")]
    await bury(store, ann, topic, "a1")
    ok(await store.settle(acks(await pull(store, bob, topic))))
    assert (await redriven(store, DeadLetterSearch(group))).redriven == 1
    assert (await pull(store, bob, topic), bodies(await pull(store, ann, topic))) == ([], ["a1"])


async def test_two_at_the_same_time_redrive_once(
    world: World, store: Store, topic: Topic, tired: ConsumerGroup
) -> None:
    import asyncio

    await bury(store, tired, topic, *[f"a{n}" for n in range(50)])
    results = await asyncio.gather(
        *[redriven(each, DeadLetterSearch(tired)) for each in (store, world.broker("b"), world.broker("c"))]
    )
    assert sum(each.redriven for each in results) == 50
    assert len(bodies(await pull(store, tired, topic))) == 50
    world.clock.pass_time(LEASE)


async def test_retention_forgets_what_went_back(world: World, store: Store, topic: Topic, tired: ConsumerGroup) -> None:
    await bury(store, tired, topic, "a1", "a2")
    await redriven(store, DeadLetterSearch(tired, offsets=frozenset([0])))
    dead = await store.find_topic("%DLQ%tired")
    assert dead is not None
    assert world.count("redriven") == 1
    world.clock.pass_time(dead.retention)
    assert await store.trim_queue(dead, dead.queue_ids[0]) == 2
    assert world.count("redriven") == 0


async def test_without_a_dead_letter_topic(store: Store, tired: ConsumerGroup) -> None:
    dead = await store.find_topic("%DLQ%tired")
    assert dead is not None
    await store.delete_topic(dead)
    with pytest.raises(NotFound, match="no dead letter topic"):
        await store.redrive(DeadLetterSearch(tired), republish=False)
