"""The check-back's bookkeeping: counted when claimed, never more than allowed, parked at the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.check_policy import SECOND, CheckPolicy
from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
from broker.errors import NotFound, VerdictConflict
from broker.ports.checks import CheckAnswer
from broker.ports.transactions import PrepareWork, TransactionFilter
from broker.storage.transactions import groups_with
from conformance.world import POLICY, World, commit, decided, half, log_of, new_id, ok, prepared, rollback

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.ports.checks import ClaimedCheck
    from broker.ports.transactions import TransactionDetail
    from broker.storage.adapters.store import Store

PREPARED, COMMITTED, ROLLED_BACK, PARKED = TransactionState


async def shop(store: Store) -> int:
    return await store.producer_group_id("shop")


async def claimed(store: Store, limit: int = 100, policy: CheckPolicy = POLICY) -> list[ClaimedCheck]:
    return await store.claim_checks([await shop(store)], policy, limit)


async def seen(store: Store, transaction_id: bytes) -> TransactionDetail:
    detail = await store.transaction(transaction_id)
    assert detail is not None
    return detail


async def exhausted(world: World, store: Store, transaction_id: bytes) -> None:
    """Lets every check of a transaction go unanswered, up to its parking."""
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        assert [check.transaction_id for check in await claimed(store)] == [transaction_id]
    world.clock.pass_time(POLICY.interval)
    assert [each[:2] for each in await store.park_exhausted(10)] == [(transaction_id, "shop")]


@pytest.mark.parametrize(("passed", "due"), [(-1, 0), (0, 1), (1, 1)])
async def test_a_check_is_due_at_its_time(world: World, store: Store, topic: Topic, passed: int, due: int) -> None:
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check + passed)
    assert len(await claimed(store)) == due


async def test_a_claimed_check_carries_what_the_producer_needs(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic, bodies=["a", "b"])
    prepared_at = world.clock.now()
    world.clock.pass_time(POLICY.first_check)
    (check,) = await claimed(store)
    assert (check.transaction_id, check.check_number, check.max_checks) == (transaction_id, 1, POLICY.max_checks)
    assert (check.prepared_at, check.producer_group_id) == (prepared_at, await shop(store))
    assert [(message.topic, message.body) for message in check.halves] == [("orders", b"a"), ("orders", b"b")]


async def test_only_the_asked_groups_are_claimed(world: World, store: Store, topic: Topic) -> None:
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check)
    assert await store.claim_checks([await store.producer_group_id("other")], POLICY, 10) == []
    assert await store.claim_checks([], POLICY, 10) == []
    assert len(await claimed(store)) == 1


async def test_the_oldest_come_first_up_to_the_limit(world: World, store: Store, topic: Topic) -> None:
    ids = []
    for _ in range(5):
        ids.append(await prepared(store, topic))
        world.clock.pass_time(1)
    world.clock.pass_time(POLICY.first_check)
    assert {check.transaction_id for check in await claimed(store, 2)} == set(ids[:2])
    assert {check.transaction_id for check in await claimed(store, 2)} == set(ids[2:4])
    assert {check.transaction_id for check in await claimed(store, 2)} == {ids[4]}


async def test_a_parked_transaction_is_told_with_the_producer_that_was_asked_last(
    world: World, store: Store, topic: Topic
) -> None:
    transaction_id, other = await prepared(store, topic), await prepared(store, topic)
    for number in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        for check in await claimed(store):
            if check.transaction_id == transaction_id:
                await store.record_sent(check, f"shop-{number}")
    world.clock.pass_time(POLICY.interval)
    parked = {each.transaction_id: each for each in await store.park_exhausted(10)}
    assert parked[transaction_id].client_id == f"shop-{POLICY.max_checks - 1}"
    assert parked[other].client_id == ""


async def test_exactly_max_checks_then_parked(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    numbers = []
    for _ in range(POLICY.max_checks * 3):
        world.clock.pass_time(POLICY.interval)
        numbers += [check.check_number for check in await claimed(store)]
    assert numbers == list(range(1, POLICY.max_checks + 1))
    assert (await seen(store, transaction_id)).summary.state is PREPARED
    assert [each[:2] for each in await store.park_exhausted(10)] == [(transaction_id, "shop")]
    assert await store.park_exhausted(10) == []
    summary = (await seen(store, transaction_id)).summary
    assert (summary.state, summary.parked_at, summary.next_check_at) == (PARKED, world.clock.now(), None)
    world.clock.pass_time(100 * POLICY.interval)
    assert await claimed(store) == []
    assert await log_of(store, topic) == []


async def test_the_last_check_has_an_interval_to_be_answered(world: World, store: Store, topic: Topic) -> None:
    await prepared(store, topic)
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        await claimed(store)
    world.clock.pass_time(POLICY.interval - 1)
    assert await store.park_exhausted(10) == []
    world.clock.pass_time(1)
    assert len(await store.park_exhausted(10)) == 1


async def test_parking_takes_no_more_than_its_limit(world: World, store: Store, topic: Topic) -> None:
    for _ in range(5):
        await prepared(store, topic)
    for _ in range(POLICY.max_checks + 1):
        world.clock.pass_time(POLICY.interval)
        await claimed(store)
    assert [len(await store.park_exhausted(2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_lower_limit_of_checks_holds_for_those_already_checked(
    world: World, store: Store, topic: Topic
) -> None:
    """The setting was lowered while a transaction had more checks behind it than are allowed now."""
    transaction_id = await prepared(store, topic)
    for _ in range(2):
        world.clock.pass_time(POLICY.interval)
        assert len(await claimed(store)) == 1
    world.clock.pass_time(POLICY.interval)
    assert await claimed(store, policy=CheckPolicy(max_checks=1)) == []
    assert [each[:2] for each in await store.park_exhausted(10)] == [(transaction_id, "shop")]


async def test_a_returned_check_was_never_spent(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check)
    for _ in range(POLICY.max_checks * 2):
        (check,) = await claimed(store)
        assert check.check_number == 1
        await store.return_check(check)
    detail = await seen(store, transaction_id)
    assert (detail.summary.check_count, detail.checks) == (0, [])
    assert detail.summary.next_check_at == world.clock.now()


async def test_the_last_check_can_be_returned(world: World, store: Store, topic: Topic) -> None:
    await prepared(store, topic)
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        (check,) = await claimed(store)
    await store.return_check(check)
    world.clock.pass_time(POLICY.interval)
    assert await store.park_exhausted(10) == []
    assert [again.check_number for again in await claimed(store)] == [POLICY.max_checks]


async def test_a_check_returned_late_takes_nothing_back(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    world.clock.pass_time(POLICY.interval)
    (first,) = await claimed(store)
    world.clock.pass_time(POLICY.interval)
    await claimed(store)
    await store.return_check(first)
    assert (await seen(store, transaction_id)).summary.check_count == 2
    await decided(store, commit(transaction_id))
    await store.return_check(first)
    assert (await seen(store, transaction_id)).summary.state is COMMITTED


@pytest.mark.parametrize("verdict", [commit, rollback])
async def test_a_decided_transaction_is_not_checked(world: World, store: Store, topic: Topic, verdict: type) -> None:
    await decided(store, verdict(await prepared(store, topic)))
    world.clock.pass_time(POLICY.interval)
    assert await claimed(store) == []
    assert await store.overdue(0) == []


async def test_the_history_of_checks(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    times = []
    for client in ("p1", "p2"):
        world.clock.pass_time(POLICY.interval)
        (check,) = await claimed(store)
        await store.record_sent(check, client)
        times.append(world.clock.now())
    await store.record_answer(transaction_id, 2, CheckAnswer("p2", CheckVerdict.UNKNOWN, "still running"))
    await store.record_answer(transaction_id, 2, CheckAnswer("p3", CheckVerdict.COMMIT, "a second answer"))
    history = [
        (entry.check_number, entry.sent_at, entry.broker_id, entry.client_id, entry.verdict, entry.reason)
        for entry in (await seen(store, transaction_id)).checks
    ]
    assert history == [
        (1, times[0], "a", "p1", None, None),
        (2, times[1], "a", "p2", CheckVerdict.UNKNOWN, "still running"),
    ]
    await decided(store, commit(transaction_id, VerdictSource.CHECK))
    assert len((await seen(store, transaction_id)).checks) == 2
    assert (await seen(store, transaction_id)).summary.check_count == 2


async def test_an_answer_of_another_group_is_not_recorded(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    world.clock.pass_time(POLICY.interval)
    await claimed(store)
    own = frozenset({await store.producer_group_id("shop")})
    foreign = frozenset({await store.producer_group_id("evil")})
    for answer in (CheckVerdict.UNKNOWN, CheckVerdict.COMMIT):
        await store.record_answer(transaction_id, 1, CheckAnswer("e1", answer, "mine", foreign))
    (entry,) = (await seen(store, transaction_id)).checks
    assert (entry.verdict, entry.reason, entry.client_id) == (None, None, "")
    # Also after the verdict.
    await decided(store, commit(transaction_id))
    await store.record_answer(transaction_id, 1, CheckAnswer("e1", CheckVerdict.COMMIT, "mine", foreign))
    await store.record_answer(transaction_id, 1, CheckAnswer("e1", CheckVerdict.COMMIT, "mine", frozenset()))
    assert (await seen(store, transaction_id)).checks[0].verdict is None
    await store.record_answer(transaction_id, 1, CheckAnswer("p1", CheckVerdict.COMMIT, "late", own))
    (entry,) = (await seen(store, transaction_id)).checks
    assert (entry.verdict, entry.reason, entry.client_id) == (CheckVerdict.COMMIT, "late", "p1")


async def test_an_answer_may_be_noted_before_who_was_asked(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    world.clock.pass_time(POLICY.interval)
    (check,) = await claimed(store)
    await store.record_answer(transaction_id, 1, CheckAnswer("p1", CheckVerdict.UNKNOWN))
    assert [entry.client_id for entry in (await seen(store, transaction_id)).checks] == ["p1"]
    await store.record_sent(check, "p1")
    (entry,) = (await seen(store, transaction_id)).checks
    assert (entry.client_id, entry.verdict) == ("p1", CheckVerdict.UNKNOWN)


@pytest.mark.parametrize("verdict", [commit, rollback])
@pytest.mark.parametrize("source", [VerdictSource.PRODUCER, VerdictSource.CHECK, VerdictSource.OPERATOR])
async def test_only_an_operator_decides_a_parked_transaction(
    world: World, store: Store, topic: Topic, verdict: type, source: VerdictSource
) -> None:
    transaction_id = await prepared(store, topic)
    await exhausted(world, store, transaction_id)
    (outcome,) = await store.decide([verdict(transaction_id, source)])
    if source is VerdictSource.OPERATOR:
        assert outcome.state is (COMMITTED if verdict is commit else ROLLED_BACK)  # type: ignore[union-attr]
    else:
        assert isinstance(outcome, VerdictConflict)
        assert outcome.state == PARKED
        assert (await seen(store, transaction_id)).summary.state is PARKED
    assert len(await log_of(store, topic)) == (source is VerdictSource.OPERATOR and verdict is commit)


async def test_check_again_grants_a_fresh_allowance(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    await exhausted(world, store, transaction_id)
    outcome = await store.check_again(transaction_id, POLICY, "ada", "producer is back")
    assert outcome.state is PREPARED
    numbers = []
    for _ in range(POLICY.max_checks * 2):
        numbers += [(check.check_number, check.max_checks) for check in await claimed(store)]
        world.clock.pass_time(POLICY.interval)
    most = 2 * POLICY.max_checks
    assert numbers == [(number, most) for number in range(POLICY.max_checks + 1, most + 1)]
    assert [each[:2] for each in await store.park_exhausted(10)] == [(transaction_id, "shop")]
    actions = (await seen(store, transaction_id)).operator_actions
    assert [(a.action, a.operator, a.reason) for a in actions] == [("CHECK_AGAIN", "ada", "producer is back")]


async def test_check_again_on_a_prepared_one_makes_it_due_now(world: World, store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    assert (await store.check_again(transaction_id, POLICY, "ada", "")).state is PREPARED
    assert [check.transaction_id for check in await claimed(store)] == [transaction_id]


@pytest.mark.parametrize(("verdict", "state"), [(commit, COMMITTED), (rollback, ROLLED_BACK)])
async def test_check_again_after_the_verdict(
    store: Store, topic: Topic, verdict: type, state: TransactionState
) -> None:
    transaction_id = await prepared(store, topic)
    await decided(store, verdict(transaction_id))
    with pytest.raises(VerdictConflict) as refused:
        await store.check_again(transaction_id, POLICY, "ada", "")
    assert refused.value.state == state


async def test_check_again_on_nothing(store: Store) -> None:
    with pytest.raises(NotFound):
        await store.check_again(new_id(), POLICY, "ada", "")


async def test_overdue_names_the_groups_and_by_how_much(world: World, store: Store, topic: Topic) -> None:
    await prepared(store, topic)
    world.clock.pass_time(SECOND)
    await prepared(store, topic)
    world.clock.pass_time(POLICY.first_check - SECOND)
    assert await store.overdue(0) == []
    world.clock.pass_time(7)
    assert await store.overdue(0) == [("shop", 7)]
    assert await store.overdue(6) == [("shop", 7)]
    assert await store.overdue(7) == []


async def test_two_brokers_claim_every_check_once(world: World, topic: Topic) -> None:
    one, two = world.broker("one"), world.broker("two")
    for _ in range(20):
        await prepared(one, topic)
    world.clock.pass_time(POLICY.first_check)
    group = await shop(one)
    taken: list[bytes] = []
    while len(taken) < 20:
        both = await asyncio.gather(*(store.claim_checks([group], POLICY, 5) for store in (one, two)))
        got = [check.transaction_id for checks in both for check in checks]
        assert got, "due checks were claimed by nobody"
        taken += got
    assert len(set(taken)) == 20


@pytest.mark.parametrize("steps", [1, 3, 64])
async def test_each_group_with_something_to_park_is_found(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """However many groups there are, most of which have nothing."""
    monkeypatch.setattr(groups_with, "STEPS", steps)
    names = [f"shop-{number}" for number in range(10)]
    for name in names:
        await store.producer_group_id(name)
    busy = names[1::2]
    for name in busy:
        group_id = await store.producer_group_id(name)
        ok(await store.prepare([PrepareWork(new_id(), group_id, [half(topic, "hello")])]))
    once = CheckPolicy(POLICY.first_check, POLICY.interval, 1)
    world.clock.pass_time(POLICY.first_check + 10 * SECOND)
    late = await store.overdue(5 * SECOND)
    assert sorted(name for name, _ in late) == busy
    assert {age for _, age in late} == {10 * SECOND}
    assert await store.park_exhausted(10) == []
    for name in busy:
        await store.claim_checks([await store.producer_group_id(name)], once, 10)
    world.clock.pass_time(POLICY.interval)
    assert sorted(each.producer_group for each in await store.park_exhausted(10)) == busy
    listed = await store.list_transactions(TransactionFilter(state=PARKED))
    assert sorted(each.producer_group for each in listed.entries) == busy
