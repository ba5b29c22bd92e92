"""A check that is given back twice, because the first COMMIT was in doubt: the second time it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.world import POLICY, World, prepared

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def test_another_brokers_check_is_not_taken_back(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    shop = await store.producer_group_id("shop")
    await prepared(store, topic)
    world.clock.pass_time(POLICY.interval)
    (check,) = await store.claim_checks([shop], POLICY, 10)
    await store.return_check(check)
    world.clock.pass_time(1)
    (theirs,) = await other.claim_checks([shop], POLICY, 10)
    assert theirs.check_number == check.check_number == 1
    await store.return_check(check)
    # Theirs went out and counts: the next one is the second.
    world.clock.pass_time(POLICY.interval)
    assert [again.check_number for again in await store.claim_checks([shop], POLICY, 10)] == [2]


async def test_no_sixteenth_check_goes_out(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    shop = await store.producer_group_id("shop")
    await prepared(store, topic)
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        (last,) = await store.claim_checks([shop], POLICY, 10)
    await store.return_check(last)
    world.clock.pass_time(1)
    assert len(await other.claim_checks([shop], POLICY, 10)) == 1
    await store.return_check(last)
    world.clock.pass_time(POLICY.interval)
    assert await store.claim_checks([shop], POLICY, 10) == []
    assert len(await store.park_exhausted(10)) == 1


async def test_nor_is_a_later_one_of_the_same_broker(world: World, store: Store, topic: Topic) -> None:
    shop = await store.producer_group_id("shop")
    await prepared(store, topic)
    world.clock.pass_time(POLICY.interval)
    (check,) = await store.claim_checks([shop], POLICY, 10)
    await store.return_check(check)
    world.clock.pass_time(1)
    assert len(await store.claim_checks([shop], POLICY, 10)) == 1
    await store.return_check(check)
    world.clock.pass_time(POLICY.interval)
    assert [again.check_number for again in await store.claim_checks([shop], POLICY, 10)] == [2]
