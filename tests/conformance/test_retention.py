"""Forgetting: end_offsets of queues and old op records, one broker at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.message import Message
from broker.domain.topic import TopicSettings
from broker.errors import NotFound
from broker.ports.log import SendWork
from broker.ports.upkeep import ToTrim
from broker.services.ids import new_id
from broker.storage.engine.session import Session
from broker.storage.retention.trimming import CHUNK, trim_queue
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
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
    sending,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store
    from broker.storage.engine.statements import Answer, Statement


LAST = 2
"""Behind the two reads of messages with a filter: of what is judged, and of what matches."""


async def fill(store: Store, topic: Topic, *names: str) -> None:
    ok(await store.send([sending(topic, name) for name in names]))


async def expired(store: Store, limit: int = 10) -> tuple[list[str], set[int], set[int]]:
    """The names of topics with something to delete, their queues, and ids of those that are too large."""
    found, after = ToTrim([], set(), set(), 0), 0
    topics, queues, large = [], set(), set()
    while found.last is not None:
        found = await store.to_trim(after, limit)
        topics += [topic.name for topic in found.topics]
        queues |= set(found.queues)
        large |= set(found.large)
        after = found.last or 0
    return topics, queues, large


async def trim(store: Store, topic: Topic) -> int:
    return await store.trim_queue(topic, topic.queue_ids[0])


def trimmed_at(world: World, topic: Topic, statement: int, patch: pytest.MonkeyPatch) -> None:
    """The queue is trimmed before one of the reads of messages that follow, which are counted from 0 on."""
    real, session, seen = Session.execute_all, world.session(), 0

    def trim_now() -> None:
        session.begin()
        assert trim_queue(session, topic, topic.queue_ids[0], world.clock.now()) == 2
        session.commit()

    def hooked(own: Session, statements: Sequence[Statement]) -> list[Answer]:
        nonlocal seen
        if own is session:
            return real(own, statements)
        seen += 1
        if seen == statement + 1:
            trim_now()
        found = real(own, statements)
        if seen == statement == LAST:
            # There is no further one.
            trim_now()
        return found

    patch.setattr(Session, "execute_all", hooked)


@pytest.mark.parametrize(("passed", "kept"), [(-1, ["a", "b"]), (0, ["b"]), (1, ["b"])])
async def test_the_head_goes_at_its_time(
    world: World, store: Store, topic: Topic, passed: int, kept: list[str]
) -> None:
    await fill(store, topic, "a")
    world.clock.pass_time(SECOND)
    await fill(store, topic, "b")
    world.clock.pass_time(HOUR - SECOND + passed)
    assert await trim(store, topic) == 2 - len(kept)
    assert await trim(store, topic) == 0
    assert [message.body.decode() for message in await log_of(store, topic)] == kept
    (state,) = await store.queue_states(topic, None)
    assert (state.min_offset, state.max_offset) == (2 - len(kept), 2)


@pytest.mark.parametrize("limit", [1, 2, 10])
async def test_it_is_told_where_something_has_expired(world: World, store: Store, topic: Topic, limit: int) -> None:
    later = await store.create_topic("later", TopicSettings(2, 3 * HOUR))
    small = await store.create_topic("small", TopicSettings(2, 9 * HOUR, retention_bytes=10))
    gone = await store.create_topic("gone", TopicSettings(1, HOUR))
    await store.create_topic("empty", TopicSettings(1, HOUR))
    await fill(store, topic, "a")
    await fill(store, gone, "a")
    ok(await store.send([SendWork(new_id(), later.topic_id, 1, Message("later", b"b"))]))
    await fill(store, small, "c", "d")
    await store.delete_topic(gone)
    world.clock.pass_time(HOUR - 1)
    assert await expired(store, limit) == ([], set(), set())
    world.clock.pass_time(1)
    assert await expired(store, limit) == ([topic.name], set(topic.queue_ids), set())
    await fill(store, small, "e" * 10)
    assert await expired(store, limit) == ([topic.name, "small"], set(topic.queue_ids), {small.topic_id})
    await trim(store, topic)
    await store.trim_topic(small)
    world.clock.pass_time(2 * HOUR)
    assert await expired(store, limit) == (["later"], {later.queue_ids[1]}, set())


async def test_offsets_go_on_behind_a_trimmed_queue(world: World, store: Store, topic: Topic) -> None:
    await fill(store, topic, "a", "b")
    world.clock.pass_time(HOUR)
    assert await trim(store, topic) == 2
    await fill(store, topic, "c")
    assert [(m.offset, m.body) for m in await log_of(store, topic)] == [(2, b"c")]
    assert (await store.read_queue(topic, 0, 0, 10, 100)).min_offset == 2


async def test_trimming_goes_in_pieces(world: World, store: Store, topic: Topic) -> None:
    for _ in range(5):
        ok(await store.send([sending(topic, "x") for _ in range(CHUNK // 2)]))
    world.clock.pass_time(HOUR)
    assert [await trim(store, topic) for _ in range(4)] == [CHUNK, CHUNK, CHUNK // 2, 0]


async def test_a_group_goes_on_at_the_first_message_kept(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, "a", "b")
    world.clock.pass_time(HOUR)
    await fill(store, topic, "c")
    await trim(store, topic)
    (state,) = await store.queue_states(topic, group)
    assert (state.lag, state.committed_offset) == (1, 2)
    assert bodies(await pull(store, group, topic)) == ["c"]


async def test_leases_over_trimmed_messages_vanish(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, "a", "b")
    world.clock.pass_time(HOUR // 2)
    await fill(store, topic, "c")
    first = await pull(store, group, topic, limit=1)
    await pull(store, group, topic)
    world.clock.pass_time(HOUR // 2)
    await trim(store, topic)
    again = await pull(store, group, topic)
    assert bodies(again) == ["c"]
    ok(await store.settle(acks(again)))
    of_first = await store.settle(acks(first))
    assert len(of_first) == 1
    world.clock.pass_time(LEASE)
    assert await pull(store, group, topic) == []
    assert world.count("lease") == 0


async def test_a_hopeless_lease_over_trimmed_messages_vanishes(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, "a")
    for _ in range(group.settings.max_attempts):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    world.clock.pass_time(HOUR)
    await trim(store, topic)
    assert await pull(store, group, topic) == []
    assert (world.count("lease"), world.count("message")) == (0, 0)


async def test_a_pull_racing_retention_hands_out_no_empty_lease(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    other = world.broker("b")
    for _ in range(20):
        await fill(store, topic, "x")
        world.clock.pass_time(HOUR)
        got, _ = await asyncio.gather(pull(store, group, topic), trim(other, topic))
        assert all(each.messages for each in got)
        ok(await store.settle(acks(got)))
    assert world.count("lease") == 0


async def test_trimming_a_deleted_queue(store: Store, topic: Topic) -> None:
    await store.delete_topic(topic)
    assert await trim(store, topic) == 0


async def test_old_op_records_go_with_their_history(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check)
    assert len(await store.claim_checks([await store.producer_group_id("shop")], POLICY, 1)) == 1
    await store.check_again(transaction_id, POLICY, "ada", "")
    await decided(store, commit(transaction_id))
    world.clock.pass_time(SECOND)
    younger = await prepared(store, topic)
    await decided(store, commit(younger))
    world.clock.pass_time(HOUR)
    assert await store.trim_ops(HOUR) == 1
    assert await store.trim_ops(HOUR) == 0
    assert [world.count(t) for t in ("op_record", "transaction_check", "operator_action")] == [1, 0, 0]
    assert await store.transaction(transaction_id) is None
    of(NotFound, (await store.decide([commit(transaction_id)]))[0])
    assert (await decided(store, commit(younger))).released == ((topic.queue_ids[0], 1),)


async def test_one_broker_has_the_turn(world: World) -> None:
    one, two = world.broker("one"), world.broker("two")
    assert await one.take_turn("trim", SECOND)
    assert not await two.take_turn("trim", SECOND)
    assert await two.take_turn("other task", SECOND)
    assert await one.take_turn("trim", SECOND), "its own turn can be renewed"
    world.clock.pass_time(SECOND - 1)
    assert not await two.take_turn("trim", SECOND)
    world.clock.pass_time(1)
    assert await two.take_turn("trim", SECOND)
    assert not await one.take_turn("trim", SECOND)


async def test_a_turn_wanted_by_many_goes_to_one(world: World) -> None:
    brokers = [world.broker(f"b{n}") for n in range(4)]
    for _ in range(10):
        got = await asyncio.gather(*(broker.take_turn("trim", SECOND) for broker in brokers))
        assert sum(got) == 1
        world.clock.pass_time(SECOND)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize(("statement", "found", "min_offset"), [(0, ["c"], 2), (1, ["c"], 2), (2, ["a", "b", "c"], 0)])
async def test_what_is_trimmed_after_it_was_read_with_a_filter_is_not_told_as_lost(
    world: World,
    store: Store,
    topic: Topic,
    statement: int,
    found: list[str],
    min_offset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ok(await store.send([sending(topic, name, tag="big") for name in "ab"]))
    world.clock.pass_time(2 * HOUR)
    ok(await store.send([sending(topic, "c", tag="big")]))
    trimmed_at(world, topic, statement, monkeypatch)
    part = await store.read_queue(topic, 0, 0, 10, 1 << 20, compile_filter(FilterKind.TAG, "big"))
    assert [message.body.decode() for message in part.messages] == found
    assert (part.min_offset, part.next_offset) == (min_offset, 3)
    assert world.count("message") == 1
