"""Single messages: held for a time under a receipt of their own, given up at once, or handed out one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.dead_letter import dead_letter_topic
from broker.domain.lease import Receipt
from broker.errors import StaleReceipt
from broker.ports.delivery import AckWork, ClaimWork, Delivered, HoldWork, NackWork, ReceiptOutcome
from conformance.message_groups import send
from conformance.world import LEASE, World, ack, bodies, of, ok, pull, receipts, sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def hold(store: Store, receipt: Receipt, time: int) -> Receipt:
    """Holds a message; the receipt that counts then."""
    (outcome,) = await store.settle([HoldWork(receipt, time)])
    assert isinstance(outcome, ReceiptOutcome), outcome
    assert outcome.receipt is not None
    return outcome.receipt


async def one_by_one(store: Store, group: ConsumerGroup, topic: Topic, limit: int = 100) -> list[Delivered]:
    work = ClaimWork(group, [topic], "consumer", limit, 1 << 20, LEASE, one_by_one=True)
    (claimed,) = await store.claim([work])
    return claimed.parts  # type: ignore[union-attr]


async def dead_letters(store: Store, group: ConsumerGroup) -> list[str]:
    topic = await store.find_topic(dead_letter_topic(group.name))
    assert topic is not None
    return [each.body.decode() for each in (await store.read_queue(topic, 0, 0, 100, 1 << 20)).messages]


def attempts(delivered: Sequence[Delivered]) -> dict[str, int]:
    return {bodies([each])[0]: each.attempt for each in delivered}


@pytest.mark.parametrize("count", [1, 3])
async def test_a_held_message_is_its_consumers_until_then(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, count: int
) -> None:
    await send(store, topic, *(f"-{n}" for n in range(count)))
    mine, *others = receipts(await pull(store, group, topic))
    held = await hold(store, mine, 100 * SECOND)
    assert held != mine
    world.clock.pass_time(LEASE + SECOND)
    assert attempts(await pull(store, group, topic)) == ({"-1": 2} if others else {})
    world.clock.pass_time(100 * SECOND - LEASE - 2 * SECOND)
    ok(await store.settle([ack(held)]))
    assert world.count("lease") == (1 if others else 0)


@pytest.mark.parametrize("count", [1, 3])
async def test_the_receipt_before_counts_no_more(store: Store, topic: Topic, group: ConsumerGroup, count: int) -> None:
    await send(store, topic, *(f"-{n}" for n in range(count)))
    mine, *others = receipts(await pull(store, group, topic))
    held = await hold(store, mine, LEASE)
    first, second = await store.settle([ack(mine), ack(held)])
    of(StaleReceipt, first)
    ok([second])
    ok(await store.settle([ack(other) for other in others]))
    of(StaleReceipt, (await store.settle([HoldWork(held, LEASE)]))[0])


async def test_a_message_may_be_held_again_and_again(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "-0", "-1")
    mine, other = receipts(await pull(store, group, topic))
    ok(await store.settle([ack(other)]))
    for _ in range(5):
        mine = await hold(store, mine, 20 * SECOND)
        world.clock.pass_time(19 * SECOND)
        assert await pull(store, group, topic) == []
    ok(await store.settle([ack(mine)]))
    assert world.count("lease") == 0


async def test_after_its_time_it_is_delivered_again(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "-0", "-1")
    mine, other = receipts(await pull(store, group, topic))
    held = await hold(store, mine, 5 * SECOND)
    ok(await store.settle([ack(other)]))
    world.clock.pass_time(5 * SECOND)
    again = await pull(store, group, topic)
    assert attempts(again) == {"-0": 2}
    of(StaleReceipt, (await store.settle([ack(held)]))[0])
    ok(await store.settle([ack(receipt) for receipt in receipts(again)]))


async def test_held_for_no_time_it_can_be_taken_at_once(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, "-0", "-1")
    mine, _ = receipts(await pull(store, group, topic))
    (outcome,) = await store.settle([HoldWork(mine, 0)])
    assert isinstance(outcome, ReceiptOutcome)
    assert outcome.frees == (group.group_id,)
    assert attempts(await pull(store, group, topic)) == {"-0": 2}


async def test_after_the_last_attempt_it_is_a_dead_letter(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "-0")
    for attempt in range(1, group.settings.max_attempts + 1):
        delivered = await pull(store, group, topic)
        assert attempts(delivered) == {"-0": attempt}
        await hold(store, receipts(delivered)[0], SECOND)
        assert await dead_letters(store, group) == []
        world.clock.pass_time(SECOND)
    assert await pull(store, group, topic) == []
    assert await dead_letters(store, group) == ["-0"]
    assert world.count("lease") == 0


async def test_what_is_settled_cannot_be_held(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, "-0", "-1", "-2", "-3")
    acked, both, nacked, open_one = receipts(await pull(store, group, topic))
    ok(await store.settle([ack(acked)]))
    outcomes = await store.settle(
        [
            HoldWork(acked, LEASE),
            HoldWork(both, LEASE),
            ack(both),
            HoldWork(nacked, LEASE),
            NackWork(nacked, 0),
            HoldWork(open_one, LEASE),
            HoldWork(open_one, LEASE),
        ]
    )
    for refused in (0, 1, 3, 6):
        of(StaleReceipt, outcomes[refused])
    ok([outcomes[2], outcomes[4], outcomes[5]])
    assert attempts(await pull(store, group, topic)) == {"-2": 2}


async def test_of_a_message_group_all_are_held_and_receipts_stay(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "b1")
    delivered = await pull(store, group, topic)
    first, second, other = sorted(receipts(delivered), key=lambda receipt: receipt.offset)
    assert await hold(store, first, 100 * SECOND) == first
    ok(await store.settle([ack(other)]))
    world.clock.pass_time(99 * SECOND)
    assert await pull(store, group, topic) == []
    ok(await store.settle([ack(first)]))
    of(StaleReceipt, (await store.settle([HoldWork(first, LEASE)]))[0])
    world.clock.pass_time(SECOND)
    assert attempts(await pull(store, group, topic)) == {"a2": 2}
    of(StaleReceipt, (await store.settle([ack(second)]))[0])


async def test_what_is_given_up_is_a_dead_letter_at_once(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "-0", "-1", "a1", "a2", "a3")
    delivered = await pull(store, group, topic)
    by_body = dict(zip(bodies(delivered), receipts(delivered), strict=True))
    ok(await store.settle([NackWork(by_body["-1"], given_up=True, reason="broken")]))
    ok(await store.settle([NackWork(by_body["a1"], given_up=True)]))
    ok(await store.settle([NackWork(by_body["a3"], given_up=True)]))
    assert await dead_letters(store, group) == ["-1", "a1", "a3"]
    ok(await store.settle([ack(by_body["-0"]), ack(by_body["a2"])]))
    assert world.count("lease") == 0


async def test_what_is_queued_is_not_joined_for_those_who_would_split_it(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a0", "a1")
    assert bodies(await one_by_one(store, group, topic)) == ["a0"]
    await send(store, topic, "a2")
    assert await one_by_one(store, group, topic) == []
    assert world.count("lease") == 3


async def test_one_by_one_means_one_of_each_message_group(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, "a1", "-1", "a2", "b1", "-2", "a3", "b2")
    handled: list[str] = []
    rounds = []
    while delivered := await one_by_one(store, group, topic):
        rounds.append(sorted(bodies(delivered)))
        handled += bodies(delivered)
        ok(await store.settle([AckWork(r.lease_id, r.token, [r.offset]) for r in receipts(delivered)]))
    assert rounds == [["-1", "-2", "a1", "b1"], ["a2", "b2"], ["a3"]]
    assert sorted(handled) == sorted(["a1", "-1", "a2", "b1", "-2", "a3", "b2"])


async def test_one_by_one_also_of_what_others_let_expire(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "a3")
    assert bodies(await pull(store, group, topic)) == ["a1", "a2", "a3"]
    world.clock.pass_time(LEASE)
    seen = []
    while delivered := await one_by_one(store, group, topic):
        seen += list(attempts(delivered).items())
        ok(await store.settle([ack(receipt) for receipt in receipts(delivered)]))
    assert seen == [("a1", 2), ("a2", 1), ("a3", 1)]


async def test_one_by_one_what_failed_comes_before_what_follows(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2")
    await hold(store, receipts(await one_by_one(store, group, topic))[0], 5 * SECOND)
    await send(store, topic, "a3")
    assert await one_by_one(store, group, topic) == []
    world.clock.pass_time(5 * SECOND)
    seen = []
    while delivered := await one_by_one(store, group, topic):
        seen += list(attempts(delivered).items())
        ok(await store.settle([ack(receipt) for receipt in receipts(delivered)]))
    assert seen == [("a1", 2), ("a2", 1), ("a3", 1)]


async def test_a_hold_stays_when_its_transaction_is_repeated(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    """After a COMMIT without an answer the work is done again; what was told then is told now."""
    from broker.storage.delivery.receipts import still_true

    ok(await store.send([sending(topic, "-0")]))
    (mine,) = receipts(await pull(store, group, topic))
    before = await store.settle([HoldWork(mine, LEASE)])
    again = await store.settle([HoldWork(mine, LEASE)])
    of(StaleReceipt, again[0])
    (told,) = still_true(before, again, store.clock.now())
    assert isinstance(told, ReceiptOutcome)
    assert told.receipt is not None
    ok(await store.settle([ack(told.receipt)]))
