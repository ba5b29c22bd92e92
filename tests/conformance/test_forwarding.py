"""Sending and acknowledging in one step: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, BrokerError, NotFound, RowsLocked, StaleReceipt
from broker.ports.log import Duplicate
from conformance.world import HOUR, LEASE, World, acks, bodies, log_of, new_id, ok, pull, sending, vanished

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


@pytest.fixture
async def out(store: Store) -> Topic:
    """Where transformed messages go."""
    return await store.create_topic("out", TopicSettings(1, HOUR))


async def texts(store: Store, topic: Topic) -> list[str]:
    return [message.body.decode() for message in await log_of(store, topic)]


async def test_both_happen(world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic) -> None:
    ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
    received = await pull(store, group, topic)
    done = await store.send_and_ack([sending(out, "A"), sending(out, "B")], acks(received))
    assert done.places == [(out.queue_ids[0], 0), (out.queue_ids[0], 1)]
    assert await texts(store, out) == ["A", "B"]
    assert world.count("lease") == 0
    world.clock.pass_time(2 * LEASE)
    assert await pull(store, group, topic) == []


async def test_a_stale_receipt_has_nothing_sent(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    ok(await store.send([sending(topic, "a"), sending(topic, "b")]))
    first = await pull(store, group, topic, limit=1, owner="frozen")
    second = await pull(store, group, topic, limit=1, owner="other")
    world.clock.pass_time(2 * LEASE)
    again = await pull(store, group, topic, owner="next")
    assert bodies(again) == ["a", "b"]
    with pytest.raises(StaleReceipt):
        await store.send_and_ack([sending(out, "A"), sending(out, "B")], acks([*first, *second]))
    with pytest.raises(StaleReceipt):
        await store.send_and_ack([sending(out, "A")], [*acks(again[:1]), *acks(first)])
    assert await texts(store, out) == []
    await store.send_and_ack([sending(out, "A"), sending(out, "B")], acks(again))
    assert await texts(store, out) == ["A", "B"]


async def test_a_refused_message_has_nothing_acknowledged(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    used = new_id()
    ok(await store.send([sending(topic, "a"), sending(out, "before", used)]))
    received = await pull(store, group, topic)
    refusals: list[tuple[type[BrokerError], list[object]]] = [
        (AlreadyExists, [sending(out, "new"), sending(out, "another under the id", used)]),
    ]
    gone = await store.create_topic("gone", TopicSettings(1, HOUR))
    vanished(world, gone)
    refusals.append((NotFound, [sending(out, "new"), sending(gone, "lost")]))
    for error, work in refusals:
        with pytest.raises(error):
            await store.send_and_ack(work, acks(received))  # type: ignore[arg-type]
    assert await texts(store, out) == ["before"]
    world.clock.pass_time(2 * LEASE)
    assert bodies(await pull(store, group, topic)) == ["a"], "it is delivered again"


async def test_a_repetition_gets_the_same_answer(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    ok(await store.send([sending(topic, "a")]))
    received = await pull(store, group, topic)
    work = [sending(out, "A")]
    first = await store.send_and_ack(work, acks(received))
    for broker in (store, world.broker("b")):
        assert (await broker.send_and_ack(work, acks(received))).places == first.places
    with pytest.raises(StaleReceipt):
        await store.send_and_ack([sending(out, "another")], acks(received))
    assert await texts(store, out) == ["A"]


async def test_a_duplicate_by_its_key_counts_as_sent(
    store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    ok(await store.send([sending(topic, "a"), sending(out, "A", dedup_key="7")]))
    received = await pull(store, group, topic)
    done = await store.send_and_ack([sending(out, "A again", dedup_key="7")], acks(received))
    assert isinstance(done.places[0], Duplicate)
    assert await texts(store, out) == ["A"]
    assert await pull(store, group, topic) == []


async def test_a_repetition_with_a_duplicate_gets_the_same_answer(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    ok(await store.send([sending(topic, "a"), sending(out, "A", dedup_key="7")]))
    received = await pull(store, group, topic)
    work = [sending(out, "A again", dedup_key="7"), sending(out, "AA")]
    first = await store.send_and_ack(work, acks(received))
    for broker in (store, world.broker("b")):
        again = (await broker.send_and_ack(work, acks(received))).places
        assert again[1:] == first.places[1:]
        assert isinstance(again[0], Duplicate)
    # Part of it is new: it is another call, and its receipts are gone.
    with pytest.raises(StaleReceipt):
        await store.send_and_ack([*work, sending(out, "new")], acks(received))
    with pytest.raises(StaleReceipt):
        await store.send_and_ack(work[:1], acks(received))
    assert await texts(store, out) == ["A", "AA"]


async def test_a_message_group_goes_on(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    ok(await store.send([sending(topic, body, message_group="g") for body in "abc"]))
    moved = []
    while received := await pull(store, group, topic, limit=1):
        assert await pull(store, group, topic, owner="other") == []
        done = await store.send_and_ack([sending(out, body.upper()) for body in bodies(received)], acks(received))
        moved += bodies(received)
        assert set(done.frees) <= {group.group_id}
    assert moved == ["a", "b", "c"]
    assert await texts(store, out) == ["A", "B", "C"]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_of_two_brokers_one_gets_through(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    other = world.broker("b")
    for number in range(10):
        ok(await store.send([sending(topic, f"{number}")]))
        received = await pull(store, group, topic)
        outcomes = await asyncio.gather(
            *(broker.send_and_ack([sending(out, f"{number}")], acks(received)) for broker in (store, other)),
            return_exceptions=True,
        )
        assert sorted(isinstance(outcome, StaleReceipt) for outcome in outcomes) == [False, True], outcomes
    assert await texts(store, out) == [f"{number}" for number in range(10)]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_a_queue_that_is_held_keeps_no_others_waiting(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, out: Topic
) -> None:
    other = await store.create_topic("other", TopicSettings(1, HOUR))
    ok(await store.send([sending(topic, f"{number}") for number in range(9)]))
    received = await pull(store, group, topic, limit=9)
    holder = world.session()
    holder.begin()
    holder.fetch("SELECT queue_id FROM queue WHERE queue_id = ? FOR UPDATE", (out.queue_ids[0],))
    work = [sending(out, "held")]
    async with asyncio.timeout(60):
        held = [asyncio.create_task(store.send_and_ack(work, acks(received))) for _ in range(8)]
        # They are before it, and all would wait for the queue, two at a time.
        done = await store.send_and_ack([sending(other, "free")], [])
        assert done.places == [(other.queue_ids[0], 0)]
        for outcome in await asyncio.gather(*held, return_exceptions=True):
            assert isinstance(outcome, RowsLocked)
        holder.rollback()
        await store.send_and_ack(work, acks(received))
    assert await texts(store, out) == ["held"]
    assert await texts(store, other) == ["free"]
    assert world.count("lease") == 0
