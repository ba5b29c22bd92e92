"""Sizes are looked at before bodies are read: what one claim or receipt holds in memory has a bound."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.ports.delivery import ClaimWork, JoinWork
from broker.ports.groups import DeadLetterSearch
from conformance.world import HOUR, LEASE, World, acks, bodies, nacks, ok, pull, sending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store

MIB = 1 << 20
COUNT = 64
BOUND = 40 * MIB
"""Half of what all bodies take as they are read; a claim of 1 MiB holds a tenth of it."""


@contextmanager
def within_bounds() -> Iterator[None]:
    """Fails when the work inside holds more memory at a time than the bound."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BOUND


async def fill(store: Store, topic: Topic, **rest: object) -> None:
    for n in range(COUNT):
        ok(await store.send([sending(topic, f"{n}".ljust(MIB), **rest)]))  # type: ignore[arg-type]


async def claim_one(store: Store, group: ConsumerGroup, topic: Topic, *, one_by_one: bool = False) -> list[Delivered]:
    (outcome,) = await store.claim([ClaimWork(group, [topic], "c", 512, MIB, LEASE, one_by_one=one_by_one)])
    return outcome.parts  # type: ignore[union-attr]


@pytest.fixture
async def impatient(store: Store, topic: Topic) -> ConsumerGroup:
    """A group that gives a message up after one attempt."""
    made = await store.create_group("impatient", GroupSettings(1), TopicSettings(1, HOUR))
    await store.join(JoinWork(made, [topic], "c", {}))
    return made


@pytest.mark.parametrize(("message_group", "one_by_one"), [("customer", False), ("customer", True), (None, False)])
async def test_a_lease_that_is_taken_over(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, message_group: str | None, one_by_one: bool
) -> None:
    await fill(store, topic, message_group=message_group)
    await pull(store, group, topic, limit=COUNT, max_bytes=COUNT * MIB)
    world.clock.pass_time(LEASE)
    with within_bounds():
        held = await claim_one(store, group, topic, one_by_one=one_by_one)
    assert [body.strip() for body in bodies(held)] == ["0"]
    ok(await store.settle(acks(held)))
    assert [body.strip() for body in bodies(await claim_one(store, group, topic))] == ["1"]


async def test_messages_that_are_given_up_when_their_lease_expires(
    world: World, store: Store, topic: Topic, impatient: ConsumerGroup
) -> None:
    await fill(store, topic)
    await pull(store, impatient, topic, limit=COUNT, max_bytes=COUNT * MIB)
    world.clock.pass_time(LEASE)
    more, claims = True, 0
    with within_bounds():
        while more:
            (outcome,) = await store.claim([ClaimWork(impatient, [topic], "c", 512, MIB, LEASE)])
            assert outcome.parts == []  # type: ignore[union-attr]
            more, claims = outcome.more, claims + 1  # type: ignore[union-attr]
    assert claims > 1, "one claim moves no more than a piece"
    await all_are_dead_letters(world, store, impatient)


async def test_messages_that_are_given_back_for_the_last_time(
    world: World, store: Store, topic: Topic, impatient: ConsumerGroup
) -> None:
    await fill(store, topic)
    work = nacks(await pull(store, impatient, topic, limit=COUNT, max_bytes=COUNT * MIB))
    with within_bounds():
        outcomes = await store.settle(work)
    ok(outcomes)
    assert [each.dead_letter[1] for each in outcomes] == list(range(COUNT))  # type: ignore[union-attr,index]
    await all_are_dead_letters(world, store, impatient)


async def test_dead_letters_that_are_published_anew(
    world: World, store: Store, topic: Topic, impatient: ConsumerGroup
) -> None:
    await fill(store, topic)
    ok(await store.settle(nacks(await pull(store, impatient, topic, limit=COUNT, max_bytes=COUNT * MIB))))
    session = world.session()
    session.begin()
    session.run(
        "DELETE FROM message WHERE queue_id = ?", (topic.queue_ids[0],)
    )  # As retention does, which leaves the dead letters.
    session.commit()
    with within_bounds():
        redriven = await store.redrive(DeadLetterSearch(impatient), republish=True)
    assert redriven.republished == COUNT
    assert world.count("message", f"queue_id = {topic.queue_ids[0]}") == COUNT


async def all_are_dead_letters(world: World, store: Store, group: ConsumerGroup) -> None:
    letters = await store.find_topic(dead_letter_topic(group.name))
    assert letters is not None
    session = world.session()
    session.begin(write=False)
    found = session.fetch(
        "SELECT log_offset, size FROM message WHERE queue_id = ? ORDER BY log_offset", (letters.queue_ids[0],)
    )
    session.rollback()
    assert [tuple(row) for row in found] == [(n, MIB) for n in range(COUNT)]
    assert world.count("lease") == 0
