"""Two brokers on one database at the same time.

SQLite is for one broker process; two stores in it stand for that process's threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from broker.domain.group import GroupSettings
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState
from broker.errors import BrokerError, VerdictConflict
from broker.ports.delivery import ClaimWork, JoinWork
from broker.ports.transactions import PrepareWork, TransactionOutcome
from conformance.world import (
    HOUR,
    LEASE,
    World,
    acks,
    bodies,
    commit,
    everywhere,
    half,
    log_of,
    new_id,
    ok,
    prepared,
    pull,
    receipts,
    refusal,
    rollback,
    sending,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

ROUNDS = 40


@pytest.fixture
def other(world: World) -> Store:
    """A second broker."""
    return world.broker("b")


async def test_a_repeated_prepare_racing_its_commit(world: World, store: Store, other: Store, topic: Topic) -> None:
    """The producer's call timed out, it repeated it on the other broker, and the verdict overtook that."""
    shop = await store.producer_group_id("shop")
    for _ in range(ROUNDS):
        work = [PrepareWork(new_id(), shop, [half(topic, "a"), half(topic, "b")]) for _ in range(3)]
        ok(await store.prepare(work))
        again, verdicts = await asyncio.gather(
            other.prepare(work), store.decide([commit(item.transaction_id) for item in work])
        )
        ok(verdicts)
        for outcome in again:
            assert isinstance(outcome, TransactionOutcome)
            assert outcome.state in {TransactionState.PREPARED, TransactionState.COMMITTED}
    await store.sweep_decided_halves()
    assert world.count("half_message") == 0
    copies = Counter((m.transaction_id, m.position) for m in await log_of(store, topic))
    assert (len(copies), set(copies.values())) == (ROUNDS * 6, {1})


async def test_an_append_racing_the_verdict(world: World, store: Store, other: Store, topic: Topic) -> None:
    """Either the appended message is in, or its producer is told; never half a transaction in silence."""
    shop = await store.producer_group_id("shop")
    told = Counter[bool]()
    for _ in range(ROUNDS):
        transaction_id = await prepared(store, topic)
        append = PrepareWork(transaction_id, shop, [half(topic, "more")], first_position=1)
        (appended,), (verdict,) = await asyncio.gather(other.prepare([append]), store.decide([commit(transaction_id)]))
        assert isinstance(verdict, TransactionOutcome)
        assert isinstance(appended, TransactionOutcome | VerdictConflict), appended
        assert len(verdict.released) == (2 if isinstance(appended, TransactionOutcome) else 1)
        told[isinstance(appended, TransactionOutcome)] += 1
    assert world.count("half_message") == 0
    assert len(await log_of(store, topic)) == 2 * told[True] + told[False]


async def test_the_first_prepare_on_two_brokers(world: World, store: Store, other: Store, topic: Topic) -> None:
    shop = await store.producer_group_id("shop")
    for _ in range(ROUNDS):
        work = [PrepareWork(new_id(), shop, [half(topic)]) for _ in range(4)]
        answers = await asyncio.gather(store.prepare(work), other.prepare(list(reversed(work))))
        ok([outcome for answer in answers for outcome in answer])
    assert world.count("half_message") == ROUNDS * 4


async def test_opposite_verdicts_on_two_brokers(world: World, store: Store, other: Store, topic: Topic) -> None:
    winners = Counter[TransactionState]()
    for _ in range(ROUNDS):
        ids = [await prepared(store, topic) for _ in range(3)]
        answers = await asyncio.gather(
            store.decide([commit(i) for i in ids]), other.decide([rollback(i) for i in reversed(ids)])
        )
        for committed, rolled_back in zip(answers[0], reversed(answers[1]), strict=True):
            (loser,) = [o for o in (committed, rolled_back) if isinstance(o, BrokerError)]
            (winner,) = [o for o in (committed, rolled_back) if isinstance(o, TransactionOutcome)]
            assert isinstance(loser, VerdictConflict)
            assert loser.state == winner.state
            winners[winner.state] += 1
    assert len(await log_of(store, topic)) == winners[TransactionState.COMMITTED]
    assert (world.count("half_message"), world.count("op_record")) == (0, ROUNDS * 3)


async def test_the_same_commit_on_two_brokers(store: Store, other: Store, topic: Topic) -> None:
    for _ in range(ROUNDS):
        ids = [await prepared(store, topic) for _ in range(3)]
        one, two = await asyncio.gather(*(broker.decide([commit(i) for i in ids]) for broker in (store, other)))
        assert one == two
    assert len(await log_of(store, topic)) == ROUNDS * 3


async def test_the_same_sends_on_two_brokers(store: Store, other: Store, topic: Topic) -> None:
    for _ in range(ROUNDS):
        work = [sending(topic) for _ in range(5)]
        one, two = await asyncio.gather(store.send(work), other.send(list(reversed(work))))
        ok([*one, *two])
        assert one == list(reversed(two))
    messages = await log_of(store, topic)
    assert len({message.transaction_id for message in messages}) == len(messages) == ROUNDS * 5


async def test_a_check_claim_racing_the_verdict(world: World, store: Store, other: Store, topic: Topic) -> None:
    from conformance.world import POLICY

    shop = await store.producer_group_id("shop")
    for _ in range(ROUNDS // 2):
        ids = [await prepared(store, topic) for _ in range(5)]
        world.clock.pass_time(POLICY.first_check)
        verdicts, claimed = await asyncio.gather(
            store.decide([commit(i) for i in ids]), other.claim_checks([shop], POLICY, 100)
        )
        ok(verdicts)
        assert all(check.halves for check in claimed)
        for check in claimed:
            await other.return_check(check)
    assert (world.count("half_message"), await store.overdue(0)) == (0, [])


async def test_two_brokers_hand_out_every_message_once(world: World, store: Store, other: Store) -> None:
    topic = await store.create_topic("wide", TopicSettings(3, HOUR))
    group = await store.create_group("billing", GroupSettings(3), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    brokers = [store, other, world.broker("c")]
    for queue_no in range(3):
        ok(await store.send([sending(topic, f"{queue_no}.{n}", queue_no=queue_no) for n in range(200)]))
    held: Counter[str] = Counter()
    while sum(held.values()) < 600:
        got = await asyncio.gather(*(pull(broker, group, topic, limit=7) for broker in brokers * 2))
        assert any(got), "messages are left, and nobody got any"
        held.update(body for each in got for body in bodies(each))
    assert set(held.values()) == {1}
    world.clock.pass_time(LEASE)
    again: Counter[str] = Counter()
    tokens = []
    while sum(again.values()) < 600:
        got = await asyncio.gather(*(pull(broker, group, topic, limit=9) for broker in brokers * 2))
        assert any(got), "leases are due, and nobody got any"
        again.update(body for each in got for body in bodies(each))
        tokens += [receipt for each in got for receipt in receipts(each)]
    assert again == held
    assert len({(r.lease_id, r.offset) for r in tokens}) == 600


async def test_an_ack_racing_the_take_over(world: World, store: Store, other: Store, topic: Topic) -> None:
    """At the end of a lease either the ack counts or the next one has the message, never both or neither."""
    group = await store.create_group("patient", GroupSettings(1000), TopicSettings(1, HOUR))
    await store.join(JoinWork(group, [topic], "consumer", {}))
    ok(await store.send([sending(topic)]))
    held = await pull(store, group, topic)
    for _ in range(ROUNDS):
        world.clock.pass_time(LEASE)
        (outcome,), taken = await asyncio.gather(store.settle(acks(held)), pull(other, group, topic))
        assert (refusal(outcome) is not None) == bool(taken)
        if taken:
            held = taken
        else:
            ok(await store.send([sending(topic)]))
            held = await pull(store, group, topic)
            assert len(bodies(held)) == 1


async def test_offsets_are_dense_under_four_writers_and_readers_never_skip(world: World) -> None:
    """Every poll of the log is a prefix of every later one."""
    store = world.broker()
    topic = await store.create_topic("orders", TopicSettings(2, HOUR))
    writers = [world.broker(f"w{n}") for n in range(4)]
    rounds = 25
    done = asyncio.Event()

    async def write(number: int, writer: Store) -> None:
        for turn in range(rounds):
            ids = [await prepared(writer, topic, bodies=["a", "b"]) for _ in range(2)]
            work = [sending(topic, f"{number}.{turn}", queue_no=None) for _ in range(3)]
            verdicts, places = await asyncio.gather(writer.decide([commit(i) for i in ids]), writer.send(work))
            ok([*verdicts, *places])

    async def read(queue_no: int) -> list[bytes]:
        seen: list[bytes] = []
        while not done.is_set():
            part = await store.read_queue(topic, queue_no, len(seen), 1000, 1 << 20)
            assert [m.offset for m in part.messages] == list(range(len(seen), len(seen) + len(part.messages)))
            seen += [message.transaction_id for message in part.messages]
        return seen

    readers = [asyncio.ensure_future(read(number)) for number in range(2)]
    await asyncio.gather(*(write(number, writer) for number, writer in enumerate(writers)))
    done.set()
    polled = await asyncio.gather(*readers)
    total = 0
    for queue_no in range(2):
        messages = await log_of(store, topic, queue_no)
        assert [message.offset for message in messages] == list(range(len(messages)))
        assert [message.transaction_id for message in messages][: len(polled[queue_no])] == polled[queue_no]
        total += len(messages)
    assert total == 4 * rounds * 7
    assert (
        sum(await store.end_offsets([topic.topic_id]) and (await store.end_offsets([topic.topic_id])).values()) == total
    )


async def test_two_consumers_drain_what_two_producers_commit(
    world: World, store: Store, other: Store, topic: Topic, group: ConsumerGroup
) -> None:
    """Everything at once; each committed message is handled once and nothing else ever is."""
    expected: set[bytes] = set()
    handled: Counter[bytes] = Counter()
    producing = asyncio.Event()

    async def produce(broker: Store) -> None:
        for turn in range(20):
            ids = [await prepared(broker, topic) for _ in range(3)]
            ok(await broker.decide([(rollback if turn % 3 == 0 else commit)(i) for i in ids]))
            expected.update(ids if turn % 3 else ())

    async def consume(broker: Store) -> None:
        while not producing.is_set() or len(handled) < len(expected):
            held = await pull(broker, group, topic, limit=5)
            ok(await broker.settle(acks(held)))
            handled.update(m.transaction_id for each in held for m in each.messages)

    consumers = [asyncio.ensure_future(consume(broker)) for broker in (store, other)]
    await asyncio.gather(produce(store), produce(other))
    producing.set()
    await asyncio.wait_for(asyncio.gather(*consumers), 60)
    assert handled == Counter(expected)
    assert world.count("lease") == 0
    assert len(await everywhere(store, topic)) == len(expected)


async def test_one_batch_of_claims_for_the_same_group(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic, f"{n}") for n in range(10)]))
    got = await asyncio.gather(*(store.claim([ClaimWork(group, [topic], f"c{n}", 4, 1000, LEASE)]) for n in range(4)))
    taken = [int(body) for (each,) in got for body in bodies(each.parts)]  # type: ignore[arg-type]
    assert sorted(taken) == list(range(10))
