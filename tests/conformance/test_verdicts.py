"""Commit and rollback: one outcome for ever, all messages or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.message import queue_for_group
from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import NotFound, VerdictConflict
from broker.ports.transactions import PrepareWork
from broker.storage.catalog.directory import Directory
from conformance.world import (
    HOUR,
    World,
    commit,
    decided,
    everywhere,
    half,
    log_of,
    new_id,
    of,
    ok,
    prepared,
    rollback,
    sending,
    vanished,
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

PREPARED, COMMITTED, ROLLED_BACK, PARKED = TransactionState
Verdict = "Callable[[bytes], VerdictWork]"


async def test_commit_releases_and_ends_the_halves(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic, bodies=["a", "b"])
    world.clock.pass_time(5)
    outcome = await decided(store, commit(transaction_id, reason="paid"))
    assert outcome.state is COMMITTED
    assert list(outcome.released) == [(topic.queue_ids[0], 0), (topic.queue_ids[0], 1)]
    messages = await log_of(store, topic)
    assert [(m.body, m.offset, m.transaction_id, m.position) for m in messages] == [
        (b"a", 0, transaction_id, 0),
        (b"b", 1, transaction_id, 1),
    ]
    assert [(m.born_at, m.stored_at) for m in messages] == [(world.clock.now() - 5, world.clock.now())] * 2
    assert world.count("half_message") == 0
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert detail.op is not None
    assert (detail.op.state, detail.op.source, detail.op.reason) == (COMMITTED, VerdictSource.PRODUCER, "paid")
    assert (detail.summary.half_count, detail.summary.producer_group) == (2, "shop")


async def test_rollback_drops(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic, bodies=["a", "b"])
    outcome = await decided(store, rollback(transaction_id))
    assert (outcome.state, list(outcome.released)) == (ROLLED_BACK, [])
    assert await log_of(store, topic) == []
    assert world.count("half_message") == 0


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("first", "second"), [(commit, commit), (rollback, rollback)])
async def test_the_same_verdict_again_has_the_same_answer(
    store: Store, topic: Topic, first: Verdict, second: Verdict, together: bool
) -> None:
    transaction_id = await prepared(store, topic)
    work = [first(transaction_id), second(transaction_id)]
    outcomes = await store.decide(work) if together else [*await store.decide(work[:1]), *await store.decide(work[1:])]
    ok(outcomes)
    assert outcomes[0] == outcomes[1]
    assert len(await log_of(store, topic)) == (first is commit)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("first", "second"), [(commit, rollback), (rollback, commit)])
async def test_the_opposite_verdict_is_refused_with_the_recorded_one(
    store: Store, topic: Topic, first: Verdict, second: Verdict, together: bool
) -> None:
    transaction_id = await prepared(store, topic)
    work = [first(transaction_id), second(transaction_id), first(transaction_id)]
    outcomes = await store.decide(work) if together else [(await store.decide([item]))[0] for item in work]
    ok([outcomes[0], outcomes[2]])
    expected = COMMITTED if first is commit else ROLLED_BACK
    assert of(VerdictConflict, outcomes[1]).state == expected  # type: ignore[attr-defined]
    assert outcomes[0].state is expected  # type: ignore[union-attr]
    assert len(await log_of(store, topic)) == (first is commit)


@pytest.mark.parametrize("verdict", [commit, rollback])
@pytest.mark.parametrize("source", list(VerdictSource)[:3])
async def test_a_verdict_on_an_unknown_transaction(
    world: World, store: Store, topic: Topic, verdict: Verdict, source: VerdictSource
) -> None:
    known, unknown = await prepared(store, topic), new_id()
    outcomes = await store.decide([verdict(unknown, source), commit(known)])
    assert of(NotFound, outcomes[0]).reason == "TRANSACTION_NOT_FOUND"
    ok(outcomes[1:])
    assert world.count("op_record") == 1


async def test_many_topics_and_message_groups_in_one_transaction(store: Store) -> None:
    """Halves with a fixed queue and halves without may come to share a queue; order and places must hold."""
    topics = [await store.create_topic(name, TopicSettings(2, HOUR)) for name in ("a", "b", "c")]
    producer = await store.producer_group_id("shop")
    work = []
    for number in range(12):
        halves = []
        for position in range(9):
            topic = topics[(position + number) % 3]
            name = None if position % 2 else f"g{position % 3}"
            queue_no = None if name is None else queue_for_group(name, 2)
            halves.append(half(topic, f"{number}.{position}", queue_no, message_group=name))
        work.append(PrepareWork(new_id(), producer, halves))
    ok(await store.prepare(work))
    ok(await store.decide([rollback(item.transaction_id) for item in work[:2]]))
    outcomes = await store.decide([commit(item.transaction_id) for item in work[2:]])
    ok(outcomes)
    places = {}
    for topic in topics:
        for number, queue_id in enumerate(topic.queue_ids):
            messages = await log_of(store, topic, number)
            assert [message.offset for message in messages] == list(range(len(messages)))
            assert len(messages) > 0
            for message in messages:
                places[message.body.decode()] = (queue_id, message.offset)
                if message.message_group:
                    assert number == queue_for_group(message.message_group, 2)
    expected = {}
    for item, outcome in zip(work[2:], outcomes, strict=True):
        for position, place in enumerate(outcome.released):  # type: ignore[union-attr]
            expected[item.halves[position].message.body.decode()] = place
    assert places == expected
    assert len(places) == 90


async def test_one_transaction_keeps_its_order_in_each_queue(store: Store, topic: Topic) -> None:
    ids = [await prepared(store, topic, bodies=[f"{n}.{p}" for p in range(20)]) for n in range(3)]
    ok(await store.decide([commit(i) for i in reversed(ids)]))
    messages = [message.body.decode() for message in await log_of(store, topic)]
    for n in range(3):
        assert [body for body in messages if body.startswith(f"{n}.")] == [f"{n}.{p}" for p in range(20)]


async def test_a_batch_without_fixed_queues_sticks_to_one_queue_and_batches_take_turns(store: Store) -> None:
    topic = await store.create_topic("wide", TopicSettings(4, HOUR))
    for _ in range(4):
        ids = [await prepared(store, topic) for _ in range(3)]
        outcomes = await store.decide([commit(i) for i in ids])
        assert len({queue for outcome in outcomes for queue, _ in outcome.released}) == 1  # type: ignore[union-attr]
    assert [len(await log_of(store, topic, number)) for number in range(4)] == [3, 3, 3, 3]


async def test_an_operators_verdict_is_recorded(store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    await decided(store, rollback(transaction_id, VerdictSource.OPERATOR, operator="ada", reason="order void"))
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert [(a.action, a.operator, a.reason) for a in detail.operator_actions] == [("ROLLBACK", "ada", "order void")]
    of(VerdictConflict, (await store.decide([commit(transaction_id, VerdictSource.OPERATOR)]))[0])


@pytest.mark.parametrize("remembers", [False, True])
async def test_a_verdict_on_a_deleted_topic(world: World, store: Store, topic: Topic, remembers: bool) -> None:
    """A broker of an earlier version let half messages into a deleted topic: they can be rolled back only."""
    other = await store.create_topic("kept", TopicSettings(1, HOUR))
    lost, both, fine = (
        await prepared(store, topic),
        await prepared(store, topic, other),
        await prepared(store, other, bodies=["fine"]),
    )
    vanished(world, topic)
    if not remembers:
        store.directory.clear()
    outcomes = await store.decide([commit(lost), commit(both), commit(fine), rollback(lost)])
    assert [of(NotFound, outcome).reason for outcome in outcomes[:2]] == ["TOPIC_NOT_FOUND"] * 2
    ok(outcomes[2:])
    assert world.count("op_record") == 2
    assert [message.body for message in await everywhere(store, other)] == [b"fine"]
    await decided(store, rollback(both))


async def test_a_delayed_verdict_on_a_deleted_topic(world: World, store: Store, topic: Topic) -> None:
    """This broker remembers the topic; a message that waits would be dropped when its time comes."""
    shop = await store.producer_group_id("shop")
    store.directory = Directory(lambda: 0.0)
    work = PrepareWork(new_id(), shop, [half(topic, deliver_at=world.clock.now() + HOUR)])
    ok(await store.prepare([work]))
    assert await store.find_topic(topic.name) == topic
    vanished(world, topic)
    (outcome,) = await store.decide([commit(work.transaction_id)])
    assert of(NotFound, outcome).reason == "TOPIC_NOT_FOUND"
    assert (world.count("scheduled_message"), world.count("op_record")) == (0, 0)
    await decided(store, rollback(work.transaction_id))


async def test_a_thousand_halves(store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic, bodies=[f"{n}" for n in range(1000)])
    outcome = await decided(store, commit(transaction_id))
    assert len(outcome.released) == 1000
    assert [int(message.body) for message in await log_of(store, topic)] == list(range(1000))
    assert await decided(store, commit(transaction_id)) == outcome


async def test_halves_left_behind_by_a_verdict_are_swept(world: World, store: Store, topic: Topic) -> None:
    ids = [await prepared(store, topic) for _ in range(3)]
    session = world.session()
    session.begin()
    for transaction_id in ids[:2]:
        session.insert(
            "op_record",
            "transaction_id, state, source, half_count, check_count, prepared_at, decided_at",
            [(transaction_id, 2, 1, 1, 0, 0, 0)],
        )
    session.commit()
    assert await store.sweep_decided_halves() == (2, b"")
    assert await store.sweep_decided_halves() == (0, b"")
    assert world.count("half_message") == 1


@pytest.mark.parametrize("knows", [True, False], ids=["prepared here", "prepared elsewhere"])
@pytest.mark.parametrize("verdict", [commit, rollback])
async def test_a_verdict_counts_for_the_producers_groups_only(
    world: World, store: Store, topic: Topic, verdict: Verdict, knows: bool
) -> None:
    """Whoever may not decide for a group is told nothing of its transactions, neither before nor after the verdict."""
    transaction_id = await prepared(store, topic, bodies=["a", "b"])
    deciding = store if knows else world.broker("b")
    own, foreign = [await store.producer_group_id(name) for name in ("shop", "evil")]
    missing = of(NotFound, (await store.decide([commit(new_id())]))[0])
    for groups in (frozenset({foreign}), frozenset[int]()):
        for attempt in (commit, rollback):
            refused = of(NotFound, (await deciding.decide([attempt(transaction_id, groups=groups)]))[0])
            assert str(refused) == str(missing)
    groups = frozenset({own, 10_000})
    done = await decided(deciding, verdict(transaction_id, groups=groups))
    assert done.state is (COMMITTED if verdict is commit else ROLLED_BACK)
    assert len(await everywhere(store, topic)) == (2 if verdict is commit else 0)
    again = await decided(deciding, verdict(transaction_id, groups=groups))
    assert again.state is done.state
    refused = of(NotFound, (await deciding.decide([verdict(transaction_id, groups=frozenset({10_000}))]))[0])
    assert str(refused) == str(missing)


async def test_verdicts_of_several_groups_in_one_batch(store: Store, topic: Topic) -> None:
    ids = [await prepared(store, topic) for _ in range(3)]
    own = frozenset({await store.producer_group_id("shop")})
    foreign = frozenset({await store.producer_group_id("evil")})
    outcomes = await store.decide(
        [commit(ids[0], groups=foreign), commit(ids[1], groups=own), commit(ids[0], groups=own), rollback(ids[2])]
    )
    of(NotFound, outcomes[0])
    ok(outcomes[1:])
    assert len(await everywhere(store, topic)) == 2


async def test_what_was_sent_is_of_no_group(store: Store, topic: Topic) -> None:
    sent = sending(topic)
    ok(await store.send([sent]))
    own = frozenset({await store.producer_group_id("shop")})
    of(NotFound, (await store.decide([commit(sent.message_id, groups=own)]))[0])
