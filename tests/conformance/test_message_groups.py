"""Message groups: each one's messages in order, one lease at a time; other groups go on."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.group import ExhaustedPolicy, GroupSettings
from broker.domain.lease import LARGEST_RANGE, Receipt
from broker.domain.topic import TopicSettings
from broker.errors import StaleReceipt
from broker.ports.delivery import JoinWork, NackWork
from broker.ports.groups import DeadLetterSearch
from conformance.message_groups import rows_of, send
from conformance.world import (
    HOUR,
    LEASE,
    World,
    ack,
    acks,
    bodies,
    nacks,
    of,
    ok,
    pull,
    receipts,
    refusal,
    sending,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.ports.delivery import Delivered
    from broker.storage.adapters.store import Store


def by_lease(delivered: Sequence[Delivered]) -> dict[str, list[str]]:
    """Bodies by the first letter of the first of a lease."""
    return {bodies([each])[0][0]: bodies([each]) for each in delivered}


def lease_of(delivered: Sequence[Delivered], letter: str) -> list[Delivered]:
    return [each for each in delivered if bodies([each])[0][0] == letter]


async def test_each_group_has_a_lease_of_its_own(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, "a1", "-1", "b1", "a2", "-2", "a3", "b2")
    held = await pull(store, group, topic)
    assert by_lease(held) == {"a": ["a1", "a2", "a3"], "b": ["b1", "b2"], "-": ["-1", "-2"]}
    assert [each.ordered for each in held] == [bodies([each])[0][0] != "-" for each in held]
    ok(await store.settle(acks(held)))
    assert await pull(store, group, topic) == []


async def test_later_ones_wait_for_the_lease_before(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "b1")
    held = await pull(store, group, topic)
    await send(store, topic, "a2", "-1", "c1", "a3")
    # A second consumer, on another broker.
    assert by_lease(await pull(world.broker("b"), group, topic)) == {"-": ["-1"], "c": ["c1"]}
    await send(store, topic, "a4")
    assert await pull(store, group, topic) == []
    (outcome,) = await store.settle(acks(lease_of(held, "a")))
    assert outcome.frees == (group.group_id,)  # type: ignore[union-attr]
    again = await pull(store, group, topic)
    assert (bodies(again), again[0].attempt) == (["a2", "a3", "a4"], 1)
    await send(store, topic, "a5")
    assert await pull(store, group, topic) == []
    ok(await store.settle(acks(again)))
    assert bodies(await pull(store, group, topic)) == ["a5"]


async def test_names_that_differ_in_a_space_at_their_end_are_two_groups(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """The servers take such texts for the same."""

    async def sent(*named: tuple[str, str]) -> None:
        ok(await store.send([sending(topic, body, message_group=name) for body, name in named]))

    await sent(("a1", "a"), ("b1", "a "))
    held = await pull(store, group, topic)
    await sent(("a2", "a"), ("b2", "a "))
    assert await pull(store, group, topic) == []
    await sent(("a3", "a"), ("b3", "a "))
    assert await pull(store, group, topic) == []
    ok(await store.settle(acks(lease_of(held, "a"))))
    (again,) = await pull(store, group, topic)
    assert bodies([again]) == ["a2", "a3"]
    # One that waits holds up no other one.
    ok(await store.settle(nacks(lease_of(held, "b"), delay=HOUR)))
    ok(await store.settle(acks([again])))
    await sent(("a4", "a"))
    (last,) = await pull(store, group, topic)
    assert bodies([last]) == ["a4"]
    ok(await store.settle(acks([last])))
    world.clock.pass_time(HOUR)
    (failed,) = await pull(store, group, topic)
    assert bodies([failed]) == ["b1"]
    ok(await store.settle(acks([failed])))
    assert bodies(await pull(store, group, topic)) == ["b2", "b3"]


async def test_a_group_that_fell_behind_is_not_handed_out_in_small_pieces(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """As many pieces as it was met in, one after the other, would be slower than what comes meanwhile."""
    await send(store, topic, "a0")
    held = await pull(store, group, topic)
    for n in range(1, 41):
        await send(store, topic, f"a{n}", f"-{n}", f"b{n}")
        got = await pull(world.broker("b") if n == 20 else store, group, topic)
        ok(await store.settle(acks(lease_of(got, "-"))))
    # Of a: the one that is held, and what is queued; the same of b.
    assert world.count("lease") == 4
    ok(await store.settle(acks(held)))
    (next_ones,) = await pull(store, group, topic, limit=30)
    assert (bodies([next_ones]), next_ones.attempt) == ([f"a{n}" for n in range(1, 31)], 1)
    await send(store, topic, "a41")
    assert await pull(store, group, topic) == []
    first, second, *_ = receipts([next_ones])
    ok(await store.settle([ack(first), NackWork(second, delay=0)]))
    (again,) = await pull(store, group, topic)
    assert (bodies([again]), again.attempt) == ([f"a{n}" for n in range(2, 31)], 2)
    ok(await store.settle(acks([again])))
    (rest,) = await pull(store, group, topic)
    assert (bodies([rest]), rest.attempt) == ([f"a{n}" for n in range(31, 42)], 1)


async def test_what_is_queued_is_in_leases_of_bounded_length(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a0")
    held = await pull(store, group, topic)
    for n in range(5):
        await send(store, topic, f"a{n + 1}", *["-"] * 400)
        while got := await pull(store, group, topic, limit=500):
            ok(await store.settle(acks(got)))
    lengths = [row[0] for row in rows_of(world, "SELECT message_count FROM lease ORDER BY first_offset")]
    assert (lengths[0], sum(length <= LARGEST_RANGE for length in lengths)) == (1, len(lengths))
    assert len(lengths) == 3
    seen: list[str] = []
    while held:
        seen += bodies(held)
        ok(await store.settle(acks(held)))
        held = await pull(store, group, topic)
    assert seen == [f"a{n}" for n in range(6)]
    assert world.count("lease") == 0


async def test_a_failing_message_blocks_its_group_only(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "a3", "b1", "-1")
    held = await pull(store, group, topic)
    first, second, third = receipts(lease_of(held, "a"))
    ok(await store.settle([ack(first), NackWork(second, delay=5 * SECOND, reason="no stock")]))
    for stale in (second, third):
        of(StaleReceipt, (await store.settle([ack(stale)]))[0])
    ok(await store.settle(acks([*lease_of(held, "b"), *lease_of(held, "-")])))
    await send(store, topic, "a4", "b2")
    assert bodies(await pull(store, group, topic)) == ["b2"]
    world.clock.pass_time(5 * SECOND - 1)
    assert await pull(store, group, topic) == []
    world.clock.pass_time(1)
    (again,) = await pull(store, group, topic)
    assert (bodies([again]), again.attempt, again.last_error) == (["a2", "a3"], 2, "no stock")
    ok(await store.settle(acks([again])))
    (last,) = await pull(store, group, topic)
    assert (bodies([last]), last.attempt, last.last_error) == (["a4"], 1, None)


async def test_the_attempt_is_the_heads(world: World, store: Store, topic: Topic, group: ConsumerGroup) -> None:
    """Three attempts are allowed: each message of a group gets three of its own."""
    await send(store, topic, "a1", "a2")
    for attempt in (1, 2):
        (held,) = await pull(store, group, topic)
        assert (bodies([held]), held.attempt) == (["a1", "a2"], attempt)
        ok(await store.settle([NackWork(receipts([held])[0], delay=0)]))
    (held,) = await pull(store, group, topic)
    assert held.attempt == 3
    one, two = receipts([held])
    ok(await store.settle([ack(one)]))
    ok(await store.settle([NackWork(two, delay=0)]))
    (held,) = await pull(store, group, topic)
    assert (bodies([held]), held.attempt) == (["a2"], 2)


async def test_after_its_last_attempt_the_head_is_a_dead_letter_and_the_group_goes_on(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "a3")
    for _ in range(group.settings.max_attempts - 1):
        ok(await store.settle([NackWork(receipts(await pull(store, group, topic))[0], delay=0)]))
    (held,) = await pull(store, group, topic)
    head, *rest = receipts([held])
    (outcome,) = await store.settle([NackWork(head, reason="broken")])
    assert outcome.dead_letter is not None  # type: ignore[union-attr]
    # The others are still this consumer's.
    ok(await store.settle([ack(receipt) for receipt in rest]))
    assert world.count("lease") == 0
    dead = await store.find_topic("%DLQ%billing")
    assert dead is not None
    (letter,) = (await store.read_queue(dead, 0, 0, 10, 1000)).messages
    assert (letter.body, letter.message_group, letter.properties["halfmq.reason"]) == (b"a1", "a", "broken")


async def test_an_expired_head_is_given_up_and_the_rest_begins(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2")
    for _ in range(group.settings.max_attempts):
        assert bodies(await pull(store, group, topic)) == ["a1", "a2"]
        world.clock.pass_time(LEASE)
    (held,) = await pull(store, group, topic)
    assert (bodies([held]), held.attempt, held.last_error) == (["a2"], 1, None)


async def test_with_the_policy_retry_nothing_is_given_up(world: World, store: Store, topic: Topic) -> None:
    patient = GroupSettings(2, (SECOND,), ExhaustedPolicy.RETRY)
    group = await store.create_group("patient", patient, TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    await send(store, topic, "a1", "a2", "-1")
    for attempt in range(1, 8):
        held = await pull(store, group, topic)
        assert by_lease(held) == {"a": ["a1", "a2"], "-": ["-1"]}
        assert {each.attempt for each in held} == {attempt}
        ok(await store.settle(nacks(held)))
        world.clock.pass_time(SECOND)
    assert world.count("message") == 3


async def test_what_is_given_back_untried_keeps_its_attempt_and_its_place(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "a3")
    held = await pull(store, group, topic)
    ok(await store.settle([ack(receipts(held)[0])]))
    ok(await store.settle([NackWork(receipt, untried=True) for receipt in receipts(held)[1:]]))
    (again,) = await pull(world.broker("b"), group, topic)
    assert (bodies([again]), again.attempt) == (["a2", "a3"], 1)


async def test_an_expired_lease_moves_with_all_its_messages(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2")
    (held,) = await pull(store, group, topic)
    await send(store, topic, "a3")
    assert await pull(store, group, topic) == []
    world.clock.pass_time(LEASE)
    (taken,) = await pull(world.broker("b"), group, topic, owner="other")
    assert (bodies([taken]), taken.attempt) == (["a1", "a2"], 2)
    of(StaleReceipt, (await store.settle(acks([held])))[0])
    ok(await store.settle(acks([taken])))
    assert bodies(await pull(store, group, topic)) == ["a3"]


async def test_a_consumer_without_room_leaves_the_rest_behind_the_lease(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await send(store, topic, "a1", "a2", "a3", "a4")
    await pull(store, group, topic)
    world.clock.pass_time(LEASE)
    (two,) = await pull(store, group, topic, limit=2)
    assert bodies([two]) == ["a1", "a2"]
    assert await pull(store, group, topic) == []
    ok(await store.settle([NackWork(receipts([two])[1], delay=0), ack(receipts([two])[0])]))
    (one,) = await pull(store, group, topic)
    assert bodies([one]) == ["a2"]
    ok(await store.settle(acks([one])))
    (rest,) = await pull(store, group, topic)
    assert (bodies([rest]), rest.attempt) == (["a3", "a4"], 1)
    ok(await store.settle(acks([rest])))
    assert world.count("lease") == 0


async def test_a_limit_is_kept_across_groups(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    await send(store, topic, *[f"{letter}{n}" for n in range(5) for letter in "abcdefgh"])
    seen: list[str] = []
    while held := await pull(store, group, topic, limit=3):
        assert 1 <= len(bodies(held)) <= 3
        seen += bodies(held)
        ok(await store.settle(acks(held)))
    assert len(seen) == 40
    for letter in "abcdefgh":
        assert [name for name in seen if name[0] == letter] == [f"{letter}{n}" for n in range(5)]


async def test_a_blocked_group_does_not_hold_up_what_lies_behind_it(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """Two thousand messages of a group that stands still, then others."""
    await send(store, topic, "a0")
    held = await pull(store, group, topic)
    for start in range(0, 2000, 500):
        await send(store, topic, *[f"a{start + n + 1}" for n in range(500)])
    await send(store, topic, "-1", "b1")
    got = await pull(store, group, topic, limit=10)
    assert by_lease(got) == {"-": ["-1"], "b": ["b1"]}
    assert world.count("lease") < 16
    ok(await store.settle(acks([*held, *got])))
    seen: list[str] = []
    while got := await pull(store, group, topic, limit=300):
        seen += bodies(got)
        ok(await store.settle(acks(got)))
    assert seen == [f"a{n + 1}" for n in range(2000)]


async def test_consumer_groups_do_not_know_of_each_other(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    other = await store.create_group("audit", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(other, [topic], "consumer", {}))
    await send(store, topic, "a1")
    await pull(store, group, topic)
    await send(store, topic, "a2")
    assert await pull(store, group, topic) == []
    assert bodies(await pull(store, other, topic)) == ["a1", "a2"]


async def test_what_comes_after_redriven_messages_keeps_its_order(world: World, store: Store, topic: Topic) -> None:
    """It is queued behind them, and not with one of them."""
    group = await store.create_group("once", GroupSettings(1, (0,)), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    for name in ("a0", "a1", "a2"):
        await send(store, topic, name)
        ok(await store.settle([NackWork(receipts(await pull(store, group, topic))[0], given_up=True)]))

    async def redrive(n: int) -> None:
        search = DeadLetterSearch(group, n, offsets=frozenset({n}), until=n + 1)
        assert (await store.redrive(search, republish=False)).redriven == 1

    await redrive(0)
    held = await pull(store, group, topic)
    await redrive(1)
    await send(store, topic, *[f"a{n}" for n in range(3, 9)])
    assert await pull(store, group, topic) == []
    await redrive(2)
    await send(store, topic, *[f"a{n}" for n in range(9, 12)])
    assert await pull(store, group, topic) == []
    seen: list[str] = []
    while held:
        seen += bodies(held)
        ok(await store.settle(acks(held)))
        held = await pull(store, group, topic, limit=3)
    assert seen == [f"a{n}" for n in range(12)]


@pytest.mark.parametrize("seed", range(3))
async def test_order_holds_whatever_consumers_on_two_brokers_do(
    world: World, store: Store, topic: Topic, seed: int
) -> None:
    """Six consumers on two brokers ack, nack, drop and return at random: each group's acks come in order, each once."""
    chance = random.Random(seed)
    group = await store.create_group("busy", GroupSettings(1000, (0,)), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    stores = [store, world.broker("b")]
    sent: dict[str, list[str]] = defaultdict(list)
    # With the turn in which each ack was asked for: their answers may overtake each other in this process.
    handled: dict[str, list[tuple[int, str]]] = defaultdict(list)
    turns = itertools.count()

    async def produce() -> None:
        for n in range(60):
            names = [f"{chance.choice('abcd-')}{n}.{i}" for i in range(chance.randrange(1, 8))]
            await send(store, topic, *names)
            for name in names:
                sent[name[0]].append(name)
            await asyncio.sleep(0)

    async def consume(owner: str, mine: Store) -> None:
        while sum(map(len, handled.values())) < sum(map(len, sent.values())) or not producing.done():
            held = await pull(mine, group, topic, limit=chance.randrange(1, 9), owner=owner)
            for each in held:
                for message in each.messages:
                    what = chance.random()
                    receipt = Receipt(each.lease_id, each.token, message.offset)
                    work = ack(receipt) if what < 0.7 else NackWork(receipt, delay=0, untried=what > 0.9)
                    if what < 0.7:
                        turn = next(turns)
                        (outcome,) = await mine.settle([work])
                        if refusal(outcome) is None:
                            name = message.body.decode()
                            handled[name[0]].append((turn, name))
                    elif what < 0.97:
                        await mine.settle([work])
                        if each.ordered:
                            break
                    else:
                        break  # Dropped: its lease must run out.
            if not held:
                world.clock.pass_time(LEASE // 3)
            await asyncio.sleep(0)

    producing = asyncio.create_task(produce())
    async with asyncio.timeout(120):
        await asyncio.gather(producing, *[consume(f"c{n}", stores[n % 2]) for n in range(6)])
    for letter, names in sent.items():
        in_turn = [name for _, name in sorted(handled[letter])]
        if letter == "-":
            assert sorted(in_turn) == sorted(names)
        else:
            assert in_turn == names, letter
    assert world.count("lease") == 0
