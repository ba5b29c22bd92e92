"""Half messages: stored once, invisible, and never mixed up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.message import Message
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import AlreadyExists, Refused, VerdictConflict
from broker.ports.transactions import Half, PrepareWork, TransactionOutcome
from conformance.world import (
    POLICY,
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
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

PREPARED, COMMITTED, ROLLED_BACK, PARKED = TransactionState


@pytest.fixture
async def shop(store: Store) -> int:
    """A producer group."""
    return await store.producer_group_id("shop")


async def test_a_half_message_is_stored_and_not_in_the_log(store: Store, topic: Topic, shop: int) -> None:
    transaction_id = new_id()
    outcome = await store.prepare([PrepareWork(transaction_id, shop, [half(topic)])])
    assert outcome == [TransactionOutcome(transaction_id, PREPARED)]
    assert await log_of(store, topic) == []
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert detail.summary.state is PREPARED
    assert [message.body for message in detail.halves] == [b"hello"]


ODD_TEXTS = ["it's", 'a "quote"', "back\\slash", "100 % ?", "naïve Überraschung", "日本語 🎉", "trailing "]


@pytest.mark.parametrize("odd", ODD_TEXTS)
async def test_content_comes_back_as_it_was_given(store: Store, topic: Topic, shop: int, odd: str) -> None:
    message = Message(topic.name, odd.encode(), odd, (odd, "second"), {odd: odd, "a": "?"}, odd)
    transaction_id = new_id()
    ok(await store.prepare([PrepareWork(transaction_id, shop, [Half(topic.topic_id, 0, message)])]))
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert detail.halves == [message]
    await decided(store, commit(transaction_id))
    (released,) = await log_of(store, topic)
    assert (released.body, released.tag, tuple(released.keys), released.properties, released.message_group) == (
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.message_group,
    )


async def test_every_byte_survives(store: Store, topic: Topic, shop: int) -> None:
    transaction_id, body = new_id(), bytes(range(256)) * 3
    ok(
        await store.prepare(
            [PrepareWork(transaction_id, shop, [Half(topic.topic_id, None, Message(topic.name, body))])]
        )
    )
    await decided(store, commit(transaction_id))
    assert [message.body for message in await log_of(store, topic)] == [body]


@pytest.mark.parametrize("copies", [2, 5])
async def test_duplicates_in_one_batch_have_one_effect(store: Store, topic: Topic, shop: int, copies: int) -> None:
    work = PrepareWork(new_id(), shop, [half(topic, "one"), half(topic, "two")])
    other = PrepareWork(new_id(), shop, [half(topic, "three")])
    outcomes = await store.prepare([work, other, *[work] * (copies - 1)])
    assert [getattr(outcome, "state", outcome) for outcome in outcomes] == [PREPARED] * (copies + 1)
    ok(await store.decide([commit(work.transaction_id), commit(other.transaction_id)]))
    assert [message.body for message in await log_of(store, topic)] == [b"one", b"two", b"three"]


async def test_the_same_prepare_again_has_the_same_answer(world: World, store: Store, topic: Topic, shop: int) -> None:
    work = PrepareWork(new_id(), shop, [half(topic)])
    assert await store.prepare([work]) == await store.prepare([work])
    assert world.count("half_message") == 1


async def test_prepare_after_commit_answers_with_the_place(world: World, store: Store, topic: Topic, shop: int) -> None:
    work = PrepareWork(new_id(), shop, [half(topic)])
    ok(await store.prepare([work]))
    first = await decided(store, commit(work.transaction_id))
    for batch in ([work], [work, work], [work, PrepareWork(new_id(), shop, [half(topic)])]):
        outcome = (await store.prepare(batch))[0]
        assert outcome == TransactionOutcome(work.transaction_id, COMMITTED, first.released)
    assert world.count("half_message") == 1
    assert len(await log_of(store, topic)) == 1


async def test_old_ids_in_a_batch_are_found_however_much_was_decided_since(
    store: Store, topic: Topic, shop: int
) -> None:
    work = [PrepareWork(new_id(), shop, [half(topic, f"{n}")]) for n in range(100)]
    ok(await store.prepare(work))
    ok(await store.decide([commit(item.transaction_id) for item in work]))
    fresh = PrepareWork(new_id(), shop, [half(topic, "fresh")])
    first, new, last = await store.prepare([work[0], fresh, work[-1]])
    assert new == TransactionOutcome(fresh.transaction_id, PREPARED)
    for item, outcome in ((work[0], first), (work[-1], last)):
        assert isinstance(outcome, TransactionOutcome)
        assert (outcome.transaction_id, outcome.state) == (item.transaction_id, COMMITTED)
        assert len(outcome.released) == 1
    ok(await store.decide([commit(fresh.transaction_id)]))
    assert len(await log_of(store, topic)) == 101


async def test_prepare_after_rollback_is_refused(world: World, store: Store, topic: Topic, shop: int) -> None:
    work = PrepareWork(new_id(), shop, [half(topic)])
    ok(await store.prepare([work]))
    await decided(store, rollback(work.transaction_id))
    for batch in ([work], [work, work]):
        for outcome in await store.prepare(batch):
            assert of(VerdictConflict, outcome).state == ROLLED_BACK  # type: ignore[attr-defined]
    assert world.count("half_message") == 0


def _changed(topic: Topic, what: str) -> Half:
    if what == "topic":
        return Half(topic.topic_id + 1, None, Message(topic.name, b"hello"))
    changes = {
        "body": {"body": b"other"},
        "tag": {"tag": "t"},
        "keys": {"keys": ("k",)},
        "properties": {"properties": {"a": "b"}},
        "message_group": {"message_group": "g"},
    }[what]
    return Half(topic.topic_id, None, Message(topic.name, **{"body": b"hello", **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["body", "tag", "keys", "properties", "message_group", "topic"])
@pytest.mark.parametrize("together", [True, False])
async def test_an_id_names_one_content(store: Store, topic: Topic, shop: int, what: str, together: bool) -> None:
    transaction_id = new_id()
    first = PrepareWork(transaction_id, shop, [half(topic)])
    second = PrepareWork(transaction_id, shop, [_changed(topic, what)])
    outcomes = (
        await store.prepare([first, second])
        if together
        else [
            *await store.prepare([first]),
            *await store.prepare([second]),
        ]
    )
    ok(outcomes[:1])
    assert of(AlreadyExists, outcomes[1]).reason == "TRANSACTION_ID_REUSED"
    detail = await store.transaction(transaction_id)
    assert detail is not None
    assert [message.body for message in detail.halves] == [b"hello"]


async def test_appended_halves_are_released_with_the_first(store: Store, topic: Topic, shop: int) -> None:
    transaction_id = await prepared(store, topic, bodies=["0", "1"])
    append = PrepareWork(transaction_id, shop, [half(topic, "2"), half(topic, "3")], first_position=2)
    ok(await store.prepare([append]))
    ok(await store.prepare([append]))
    outcome = await decided(store, commit(transaction_id))
    assert len(outcome.released) == 4
    assert [(message.body, message.position) for message in await log_of(store, topic)] == [
        (b"0", 0),
        (b"1", 1),
        (b"2", 2),
        (b"3", 3),
    ]


async def test_an_append_may_overlap_what_is_there(store: Store, topic: Topic, shop: int) -> None:
    transaction_id = await prepared(store, topic, bodies=["0", "1"])
    ok(await store.prepare([PrepareWork(transaction_id, shop, [half(topic, "1"), half(topic, "2")], first_position=1)]))
    await decided(store, commit(transaction_id))
    assert [message.body for message in await log_of(store, topic)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize(("there", "first"), [(0, 1), (1, 2), (2, 4)])
async def test_positions_have_no_gaps(store: Store, topic: Topic, shop: int, there: int, first: int) -> None:
    transaction_id = await prepared(store, topic, bodies=[str(n) for n in range(there)]) if there else new_id()
    outcome = (await store.prepare([PrepareWork(transaction_id, shop, [half(topic)], first_position=first)]))[0]
    assert of(Refused, outcome).reason == "POSITION_GAP"


@pytest.mark.parametrize("verdict", [commit, rollback])
async def test_nothing_is_appended_after_the_verdict(
    world: World, store: Store, topic: Topic, shop: int, verdict: type
) -> None:
    transaction_id = await prepared(store, topic)
    await decided(store, verdict(transaction_id))
    append = PrepareWork(transaction_id, shop, [half(topic, "late")], first_position=1)
    of(VerdictConflict, (await store.prepare([append]))[0])
    assert world.count("half_message") == 0
    assert b"late" not in [message.body for message in await log_of(store, topic)]


async def test_a_repeated_append_after_commit_answers_with_the_place(store: Store, topic: Topic, shop: int) -> None:
    transaction_id = await prepared(store, topic)
    append = PrepareWork(transaction_id, shop, [half(topic, "more")], first_position=1)
    ok(await store.prepare([append]))
    first = await decided(store, commit(transaction_id))
    assert await store.prepare([append]) == [TransactionOutcome(transaction_id, COMMITTED, first.released)]


async def test_nothing_is_appended_to_a_parked_transaction(world: World, store: Store, topic: Topic, shop: int) -> None:
    transaction_id = await prepared(store, topic)
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        assert len(await store.claim_checks([shop], POLICY, 10)) == 1
    world.clock.pass_time(POLICY.interval)
    assert [parked for parked, *_ in await store.park_exhausted(10)] == [transaction_id]
    append = PrepareWork(transaction_id, shop, [half(topic, "late")], first_position=1)
    assert of(VerdictConflict, (await store.prepare([append]))[0]).state == PARKED  # type: ignore[attr-defined]
    await decided(store, commit(transaction_id, VerdictSource.OPERATOR, operator="op", reason="seen"))
    assert [message.body for message in await everywhere(store, topic)] == [b"hello"]


async def test_an_empty_batch_has_no_outcomes(store: Store) -> None:
    assert await store.prepare([]) == []


async def test_the_first_check_is_due_after_the_policys_time_or_later(world: World, store: Store, topic: Topic) -> None:
    soon = await prepared(store, topic)
    late = await prepared(store, topic, first_check_delay=POLICY.first_check * 10)
    early = await prepared(store, topic, first_check_delay=1)
    due = {}
    for transaction_id in (soon, late, early):
        detail = await store.transaction(transaction_id)
        assert detail is not None
        assert detail.summary.next_check_at is not None
        due[transaction_id] = detail.summary.next_check_at - world.clock.now()
    assert due == {soon: POLICY.first_check, late: POLICY.first_check * 10, early: POLICY.first_check}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("deliver_at", [None, 1 << 60])
async def test_a_prepare_again_in_another_trace_has_one_effect(
    world: World, store: Store, topic: Topic, shop: int, together: bool, deliver_at: int | None
) -> None:
    """A call has a span of its own, and so the message another context."""
    transaction_id = new_id()
    contexts: list[dict[str, str]] = [{"traceparent": "first", "tracestate": "a=1"}, {"traceparent": "second"}, {}]
    items = [
        PrepareWork(transaction_id, shop, [half(topic, deliver_at=deliver_at, properties=context)])
        for context in contexts
    ]
    for batch in [items] if together else [[item] for item in items]:
        ok(await store.prepare(batch))
    assert world.count("half_message") == 1
    other = PrepareWork(transaction_id, shop, [half(topic, deliver_at=deliver_at, properties={"x": "1"})])
    assert of(AlreadyExists, (await store.prepare([other]))[0]).reason == "TRANSACTION_ID_REUSED"


@pytest.mark.parametrize("verdict", [None, commit, rollback])
async def test_an_id_of_another_producer_group_is_refused_and_nothing_is_told(
    world: World, store: Store, topic: Topic, verdict: Any
) -> None:
    """Neither its state, nor where its messages are; and nobody adds to it."""
    transaction_id = await prepared(store, topic, bodies=["a"])
    if verdict is not None:
        await decided(store, verdict(transaction_id))
    evil = await store.producer_group_id("evil")
    texts = set()
    for first_position in (0, 1):
        work = PrepareWork(transaction_id, evil, [half(topic, "a")], first_position=first_position)
        (outcome,) = await store.prepare([work])
        refused = of(AlreadyExists, outcome)
        assert refused.reason == "TRANSACTION_ID_REUSED"
        texts.add(str(refused))
    assert len(texts) == 1
    # Those of the group go on as before.
    own = await store.producer_group_id("shop")
    (again,) = await store.prepare([PrepareWork(transaction_id, own, [half(topic, "a")])])
    if verdict is rollback:
        of(VerdictConflict, again)
    else:
        ok([again])
    if verdict is None:
        assert world.count("half_message") == 1
        ok([await decided(store, commit(transaction_id))])
