"""Delivery: each message in one pair of hands at a time, until it is handled."""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import GroupSettings
from broker.domain.lease import LARGEST_RANGE, Receipt
from broker.domain.retry import ROCKETMQ_DELAYS
from broker.domain.topic import TopicSettings
from broker.errors import StaleReceipt
from broker.ports.delivery import AckOutcome, AckWork, Claimed, ClaimWork, ExtendWork, GroupNews, JoinWork, NackWork
from conformance.world import (
    HOUR,
    LEASE,
    World,
    ack,
    acks,
    bodies,
    commit,
    nacks,
    of,
    ok,
    prepared,
    pull,
    receipts,
    rollback,
    sending,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def fill(store: Store, topic: Topic, count: int, size: int = 0) -> None:
    ok(await store.send([sending(topic, f"{n}".ljust(size)) for n in range(count)]))


async def test_only_what_is_committed_is_delivered(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ids = [await prepared(store, topic, bodies=[str(n)]) for n in range(4)]
    assert await pull(store, group, topic) == []
    ok(await store.decide([commit(ids[0]), rollback(ids[1]), commit(ids[2])]))
    assert bodies(await pull(store, group, topic)) == ["0", "2"]
    assert await pull(store, group, topic) == []


async def test_a_delivery_says_what_is_needed(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 2)
    (delivered,) = await pull(store, group, topic)
    assert (delivered.attempt, delivered.expires_at, delivered.last_error) == (1, world.clock.now() + LEASE, None)
    assert [(m.topic, m.queue_no, m.offset) for m in delivered.messages] == [("orders", 0, 0), ("orders", 0, 1)]


@pytest.mark.parametrize(
    ("limit", "max_bytes", "expected"), [(3, 1000, 3), (100, 40, 4), (100, 49, 4), (100, 1, 1), (1, 1000, 1)]
)
async def test_a_pull_has_bounds(
    store: Store, topic: Topic, group: ConsumerGroup, limit: int, max_bytes: int, expected: int
) -> None:
    await fill(store, topic, 20, size=10)
    assert len(bodies(await pull(store, group, topic, limit=limit, max_bytes=max_bytes))) == expected


@pytest.mark.parametrize(("limit", "max_bytes", "expected"), [(3, 1000, 3), (100, 40, 4), (100, 1, 1)])
async def test_a_pull_of_expired_leases_has_bounds_too(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, limit: int, max_bytes: int, expected: int
) -> None:
    """A smaller consumer takes over a part of what a larger one let expire; the rest waits for others."""
    await fill(store, topic, 20, size=10)
    assert len(bodies(await pull(store, group, topic))) == 20
    world.clock.pass_time(LEASE)
    first = await pull(store, group, topic, limit=limit, max_bytes=max_bytes)
    assert len(bodies(first)) == expected
    rest = await pull(store, group, topic)
    assert sorted(map(int, bodies(first) + bodies(rest))) == list(range(20))
    assert {each.attempt for each in [*first, *rest]} == {2}
    ok(await store.settle(acks(first) + acks(rest)))
    assert world.count("lease") == 0


async def test_a_pull_sees_all_queues_and_topics_in_turn(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    wide = await store.create_topic("wide", TopicSettings(3, HOUR))
    await store.join(JoinWork(group, [topic, wide], "consumer", {}))
    await fill(store, topic, 2)
    for queue_no in range(3):
        ok(await store.send([sending(wide, f"q{queue_no}", queue_no=queue_no)]))
    got = await pull(store, group, topic, wide)
    assert sorted(bodies(got)) == ["0", "1", "q0", "q1", "q2"]
    assert {(m.topic, m.queue_no) for each in got for m in each.messages} == {
        ("orders", 0),
        *(("wide", n) for n in range(3)),
    }
    starts = []
    for _ in range(3):
        for queue_no in range(3):
            ok(await store.send([sending(wide, f"q{queue_no}", queue_no=queue_no)]))
        starts += bodies(await pull(store, group, wide, limit=1))
        ok(await store.settle(acks(await pull(store, group, wide))))
    assert len(set(starts)) > 1, "the same queue was always served first"


async def test_groups_do_not_see_each_other(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    other = await store.create_group("audit", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(other, [topic], "consumer", {}))
    await fill(store, topic, 3)
    ok(await store.settle(acks(await pull(store, group, topic))))
    assert bodies(await pull(store, other, topic)) == ["0", "1", "2"]


async def test_joining_again_keeps_the_progress(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 3)
    await pull(store, group, topic)
    await store.join(JoinWork(group, [topic], "consumer", {}))
    assert await pull(store, group, topic) == []


async def test_no_topics_no_messages(store: Store, group: ConsumerGroup) -> None:
    await store.join(JoinWork(group, [], "consumer", {}))
    assert await pull(store, group) == []


async def test_several_consumers_in_one_batch(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 10)
    from broker.ports.delivery import ClaimWork

    wishes = [ClaimWork(group, [topic], f"c{n}", 3, 1000, LEASE) for n in range(5)]
    got = [bodies(each.parts) for each in await store.claim(wishes)]  # type: ignore[union-attr]
    assert [len(each) for each in got] == [3, 3, 3, 1, 0]
    assert sorted(map(int, functools.reduce(operator.iadd, got, []))) == list(range(10))


class TestSettling:
    async def test_acked_messages_do_not_come_again(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 5)
        held = receipts(await pull(store, group, topic))
        ok(await store.settle([ack(held[0]), ack(held[3])]))
        world.clock.pass_time(LEASE)
        again = await pull(store, group, topic)
        assert bodies(again) == ["1", "2", "4"]
        ok(await store.settle(acks(again)))
        world.clock.pass_time(LEASE)
        assert await pull(store, group, topic) == []
        assert world.count("lease") == 0

    @pytest.mark.parametrize("whole", [True, False])
    async def test_an_ack_twice(self, store: Store, topic: Topic, group: ConsumerGroup, whole: bool) -> None:
        """While the lease lives, the same ack again is fine; when all of it is settled, its receipts are gone."""
        await fill(store, topic, 2)
        held = [ack(each) for each in receipts(await pull(store, group, topic))]
        ok(await store.settle(held if whole else held[:1]))
        (outcome,) = await store.settle(held[:1])
        if whole:
            assert of(StaleReceipt, outcome).reason == "RECEIPT_GONE"
        else:
            ok([outcome])

    async def test_an_ack_twice_in_one_batch(self, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        await fill(store, topic, 2)
        held = acks(await pull(store, group, topic))
        ok(await store.settle([*held, *held]))

    async def test_some_of_an_ack_are_refused(self, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        """Each offset stands for itself: one that went back, one that the lease never had."""
        await fill(store, topic, 4)
        (held,) = await pull(store, group, topic)
        ok(await store.settle([NackWork(receipts([held])[1], delay=SECOND)]))
        (outcome,) = await store.settle([AckWork(held.lease_id, held.token, [0, 1, 2, 9, 2])])
        assert isinstance(outcome, AckOutcome)
        assert {offset: type(why) for offset, why in outcome.refused.items()} == {1: StaleReceipt, 9: StaleReceipt}
        ok(await store.settle([ack(receipts([held])[3])]))
        (again,) = await store.settle([AckWork(held.lease_id, held.token, [0, 3])])
        assert isinstance(again, AckOutcome)
        assert [getattr(why, "reason", "") for why in again.refused.values()] == ["RECEIPT_GONE"] * 2

    @pytest.mark.parametrize(("passed", "delivered"), [(-1, 0), (0, 1), (1, 1)])
    async def test_a_lease_ends_at_its_time(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup, passed: int, delivered: int
    ) -> None:
        await fill(store, topic, 1)
        await pull(store, group, topic)
        world.clock.pass_time(LEASE + passed)
        assert len(await pull(store, group, topic, owner="other")) == delivered

    async def test_a_late_ack_counts_until_somebody_else_has_the_message(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 1)
        held = acks(await pull(store, group, topic))
        world.clock.pass_time(LEASE * 2)
        ok(await store.settle(held))
        assert await pull(store, group, topic) == []

    async def test_a_late_ack_counts_for_what_a_smaller_consumer_left(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 3)
        held = acks(await pull(store, group, topic))
        world.clock.pass_time(LEASE)
        taken = await pull(store, group, topic, limit=1)
        assert bodies(taken) == ["0"]
        outcomes = await store.settle(held)
        assert of(StaleReceipt, outcomes[0]).reason == "RECEIPT_STALE"
        ok(outcomes[1:])
        assert await pull(store, group, topic) == []
        ok(await store.settle(acks(taken)))
        assert world.count("lease") == 0

    @pytest.mark.parametrize("how", ["ack", "nack", "extend"])
    async def test_a_stale_receipt_is_refused(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup, how: str
    ) -> None:
        await fill(store, topic, 2)
        (old, *_) = receipts(await pull(store, group, topic))
        world.clock.pass_time(LEASE)
        current = await pull(store, group, topic, owner="other")
        work = {"ack": ack(old), "nack": NackWork(old), "extend": ExtendWork(old, LEASE * 10)}[how]
        fine = ack(receipts(current)[1])
        outcomes = await store.settle([work, fine])
        assert of(StaleReceipt, outcomes[0]).reason == "RECEIPT_STALE"
        ok(outcomes[1:])
        world.clock.pass_time(LEASE)
        assert bodies(await pull(store, group, topic)) == ["0"]

    @pytest.mark.parametrize("change", [{"token": 1}, {"offset": 7}, {"lease_id": 999_999_999}])
    async def test_a_made_up_receipt_is_refused(
        self, store: Store, topic: Topic, group: ConsumerGroup, change: dict[str, int]
    ) -> None:
        await fill(store, topic, 1)
        (receipt,) = receipts(await pull(store, group, topic))
        of(StaleReceipt, (await store.settle([ack(replace(receipt, **change))]))[0])
        ok(await store.settle([ack(receipt)]))

    async def test_an_extension_moves_the_end(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 1)
        (receipt,) = receipts(await pull(store, group, topic))
        world.clock.pass_time(LEASE - 1)
        (outcome,) = await store.settle([ExtendWork(receipt, LEASE)])
        assert outcome.expires_at == world.clock.now() + LEASE  # type: ignore[union-attr]
        world.clock.pass_time(LEASE - 1)
        assert await pull(store, group, topic) == []
        world.clock.pass_time(1)
        assert [each.attempt for each in await pull(store, group, topic)] == [2]

    async def test_ack_nack_and_extension_of_one_lease_in_one_batch(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 4)
        held = receipts(await pull(store, group, topic))
        ok(await store.settle([ExtendWork(held[0], 5 * LEASE), ack(held[1]), NackWork(held[2], delay=SECOND)]))
        world.clock.pass_time(SECOND)
        assert bodies(await pull(store, group, topic)) == ["2"]
        world.clock.pass_time(5 * LEASE - SECOND)
        assert sorted(bodies(await pull(store, group, topic))) == ["0", "2", "3"]


class TestGivingBack:
    @pytest.mark.parametrize("delay", [0, SECOND, 100 * SECOND])
    async def test_a_message_given_back_waits_for_its_delay(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup, delay: int
    ) -> None:
        await fill(store, topic, 3)
        held = receipts(await pull(store, group, topic))
        ok(await store.settle([NackWork(held[1], delay=delay, reason="no stock"), ack(held[0]), ack(held[2])]))
        if delay:
            world.clock.pass_time(delay - 1)
            assert await pull(store, group, topic) == []
            world.clock.pass_time(1)
        (again,) = await pull(store, group, topic, lease_time=HOUR)
        assert ([m.body for m in again.messages], again.attempt, again.last_error) == ([b"1"], 2, "no stock")

    async def test_without_a_delay_the_retry_table_holds(self, world: World, store: Store, topic: Topic) -> None:
        group = await store.create_group("patient", GroupSettings(20), TopicSettings(1, HOUR))
        await store.join(JoinWork(group, [topic], "consumer", {}))
        await fill(store, topic, 1)
        held = await pull(store, group, topic)
        for attempt, delay in enumerate([*ROCKETMQ_DELAYS, ROCKETMQ_DELAYS[-1]], 1):
            assert [each.attempt for each in held] == [attempt]
            ok(await store.settle(nacks(held)))
            world.clock.pass_time(delay - 1)
            assert await pull(store, group, topic) == []
            world.clock.pass_time(1)
            held = await pull(store, group, topic)

    async def test_untried_messages_cost_no_attempt(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 2)
        for _ in range(group.settings.max_attempts * 2):
            held = await pull(store, group, topic)
            assert {each.attempt for each in held} == {1}
            assert sorted(bodies(held)) == ["0", "1"]
            ok(await store.settle(nacks(held, untried=True)))

    async def test_a_receipt_given_back_is_stale(self, store: Store, topic: Topic, group: ConsumerGroup) -> None:
        await fill(store, topic, 2)
        held = receipts(await pull(store, group, topic))
        ok(await store.settle([NackWork(held[0], delay=0)]))
        for work in (ack(held[0]), NackWork(held[0]), ExtendWork(held[0], 1)):
            assert of(StaleReceipt, (await store.settle([work]))[0]).reason == "RECEIPT_STALE"
        ok(await store.settle([ack(held[1])]))
        assert of(StaleReceipt, (await store.settle([ack(held[0])]))[0]).reason == "RECEIPT_GONE"

    async def test_giving_back_twice_in_one_batch_makes_one_delivery(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 1)
        (work,) = nacks(await pull(store, group, topic), delay=0)
        await store.settle([work, work])
        assert bodies(await pull(store, group, topic)) == ["0"]
        assert world.count("lease") == 1

    async def test_neighbours_given_back_together_share_a_lease(
        self, world: World, store: Store, topic: Topic, group: ConsumerGroup
    ) -> None:
        await fill(store, topic, 6)
        held = receipts(await pull(store, group, topic))
        ok(await store.settle([NackWork(held[n], delay=SECOND) for n in (5, 1, 2)]))
        assert world.count("lease") == 3
        world.clock.pass_time(SECOND)
        assert [[int(m.body) for m in each.messages] for each in await pull(store, group, topic)] == [[1, 2], [5]]


async def test_groups_with_due_leases(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await fill(store, topic, 2)
    await pull(store, group, topic)
    world.clock.pass_time(LEASE - 1)
    assert await store.look_at_groups({group.group_id: [topic.topic_id]}) == {group.group_id: GroupNews(0, False)}
    world.clock.pass_time(1)
    assert await store.look_at_groups({group.group_id: [topic.topic_id]}) == {group.group_id: GroupNews(0, True)}
    await store.pause_group(group, paused=True, reason="")
    assert await store.look_at_groups({group.group_id: [topic.topic_id]}) == {group.group_id: GroupNews(1, False)}
    await store.delete_group(group)
    assert await store.look_at_groups({group.group_id: [topic.topic_id]}) == {}


async def test_due_leases_of_topics_nobody_reads_any_more_are_in_nobodys_way(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    old = await store.create_topic("old", TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [old], "consumer", {}))
    for n in range(100):
        ok(await store.send([sending(old, f"{n}")]))
        assert len(await pull(store, group, old)) == 1
    world.clock.pass_time(1)
    await fill(store, topic, 1)
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    assert bodies(await pull(store, group, topic)) == ["0"]
    for topics, due in [([topic], False), ([old], True), ([old, topic], True)]:
        news = await store.look_at_groups({group.group_id: [each.topic_id for each in topics]})
        assert news == {group.group_id: GroupNews(0, due)}


async def test_what_a_split_lease_leaves_behind_can_be_taken_at_once(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 3)
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    more = []
    for _ in range(3):
        wish = ClaimWork(group, [topic], "consumer", 1, 1 << 20, LEASE)
        (claimed,) = await store.claim([wish])
        assert isinstance(claimed, Claimed)
        assert sum(len(each.messages) for each in claimed.parts) == 1
        more.append(claimed.more)
    assert more == [True, True, False]


async def test_what_nobody_waits_for_any_more_is_not_handed_out(
    store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 1)
    left, waits = await store.claim(
        [ClaimWork(group, [topic], "consumer", 1, 1 << 20, LEASE, abandoned=abandoned) for abandoned in (True, False)]
    )
    assert isinstance(left, Claimed)
    assert isinstance(waits, Claimed)
    assert (left.parts, bodies(waits.parts)) == ([], ["0"])


async def test_a_range_has_a_bound(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    """More than one bitmap holds is handed out in several pulls."""
    for _ in range(3):
        await fill(store, topic, 500)
    sizes = []
    while held := await pull(store, group, topic, limit=10_000):
        sizes += [len(each.messages) for each in held]
        ok(await store.settle([ack(each) for each in receipts(held)[::2]]))
    assert (sum(sizes), max(sizes)) == (1500, LARGEST_RANGE)
    world.clock.pass_time(LEASE)
    assert len(bodies(await pull(store, group, topic, limit=10_000))) == 750


async def test_a_lease_of_one_message_has_a_receipt_of_its_own(
    store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await fill(store, topic, 2)
    first, second = receipts(await pull(store, group, topic))
    assert (first.lease_id, first.token) == (second.lease_id, second.token)
    assert second == Receipt(first.lease_id, first.token, 1)


async def test_a_receipt_never_speaks_for_a_later_lease(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    """The number of a lease is not given again: an ack that is repeated much later is told that the work is done."""
    await fill(store, topic, 3)
    first = acks(await pull(store, group, topic, limit=1))
    ok(await store.settle(first))
    for _ in range(2):
        await pull(store, group, topic, limit=1)
        (outcome,) = await store.settle(first)
        assert of(StaleReceipt, outcome).reason == "RECEIPT_GONE"
