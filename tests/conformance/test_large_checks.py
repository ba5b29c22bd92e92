"""Checks that are due together are claimed some megabytes at a time; the rest stays due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.transactions import PrepareWork
from conformance.world import POLICY, World, half, new_id, ok

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

MIB = 1 << 20


async def test_due_checks_are_claimed_by_their_bytes(world: World, store: Store, topic: Topic) -> None:
    shop = await store.producer_group_id("shop")
    ids = [new_id() for _ in range(12)]
    for own in ids:
        ok(await store.prepare([PrepareWork(own, shop, [half(topic, "x" * 4 * MIB)])]))
        world.clock.pass_time(1)
    world.clock.pass_time(POLICY.interval)
    due_by = world.clock.now()
    rounds = []
    while claimed := await store.claim_checks([shop], POLICY, 256, due_by):
        assert sum(len(each.body) for check in claimed for each in check.halves) <= 16 * MIB
        rounds.append([check.transaction_id for check in claimed])
    # Those that wait longest first, and each of them once.
    assert [sorted(each) for each in rounds] == [sorted(ids[:4]), sorted(ids[4:8]), sorted(ids[8:])]


async def test_one_that_is_larger_than_all_that_is_allowed_goes_alone(world: World, store: Store, topic: Topic) -> None:
    shop = await store.producer_group_id("shop")
    large, small = new_id(), new_id()
    ok(await store.prepare([PrepareWork(large, shop, [half(topic, "x" * 4 * MIB) for _ in range(5)])]))
    world.clock.pass_time(1)
    ok(await store.prepare([PrepareWork(small, shop, [half(topic, "x")])]))
    world.clock.pass_time(POLICY.interval)
    due_by = world.clock.now()
    claims = [await store.claim_checks([shop], POLICY, 256, due_by) for _ in range(3)]
    assert [[check.transaction_id for check in each] for each in claims] == [[large], [small], []]
    assert len(claims[0][0].halves) == 5
