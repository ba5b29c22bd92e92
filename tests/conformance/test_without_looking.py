"""A broker that decides and sends without looking first: what it believes is verified, and corrected if it is wrong.

Usual cases are run twice: by a broker that prepared the transaction and knows the ends of the queues, and by one that
knows nothing and looks first. Both have to leave the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import NotFound, StorageUnavailable, VerdictConflict
from broker.ports.log import Duplicate
from broker.ports.transactions import PrepareWork, TransactionOutcome
from broker.storage.log import appending
from broker.storage.log.queue_ends import MOST, TRUSTED_AFTER, QueueEnds
from broker.storage.transactions import prepared_here, verdicts
from conformance.interleaving import LateCommit, Pause, waits_or_ends
from conformance.world import (
    HOUR,
    World,
    commit,
    decided,
    half,
    log_of,
    new_id,
    of,
    ok,
    prepared,
    rollback,
    sending,
    stored_bytes_are_exact,
    vanished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

KNOWING = pytest.mark.parametrize("knowing", [True, False], ids=["knows", "looks"])


@pytest.fixture
def guesses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each verdict was decided without looking, in their order."""
    seen: list[bool] = []
    real: Callable[..., Any] = verdicts._decide_from_memory

    def noting(*arguments: Any) -> Any:
        outcomes = real(*arguments)
        seen.append(outcomes is not None)
        return outcomes

    monkeypatch.setattr(verdicts, "_decide_from_memory", noting)
    return seen


async def warm(store: Store, topic: Topic) -> None:
    """Makes a broker know the end of every queue."""
    for queue_no in range(topic.queue_count):
        for _ in range(TRUSTED_AFTER):
            ok(await store.send([sending(topic, "warm", queue_no=queue_no)]))


async def chosen(world: World, store: Store, topic: Topic, *, knowing: bool) -> Store:
    """The broker that is to decide: this one, which prepared all, or another one that knows nothing."""
    if not knowing:
        return world.broker("stranger")
    await warm(store, topic)
    return store


async def texts(store: Store, topic: Topic) -> list[str]:
    """Bodies in the log, without those that made the broker know."""
    found = [each for number in range(len(topic.queue_ids)) for each in await log_of(store, topic, number)]
    return [text for each in found if (text := each.body.decode()) != "warm"]


async def dense(store: Store, topic: Topic) -> None:
    """Offsets have no gaps and none is twice."""
    for queue_no in range(len(topic.queue_ids)):
        offsets = [each.offset for each in await log_of(store, topic, queue_no)]
        assert offsets == list(range(len(offsets)))


@KNOWING
async def test_commit(world: World, store: Store, topic: Topic, guesses: list[bool], *, knowing: bool) -> None:
    own = await prepared(store, topic, bodies=["one", "two"])
    store_of_verdict = await chosen(world, store, topic, knowing=knowing)
    outcome = await decided(store_of_verdict, commit(own))
    assert guesses == [knowing]
    assert outcome.state is TransactionState.COMMITTED
    offset = TRUSTED_AFTER if knowing else 0
    assert [place[1] for place in outcome.released] == [offset, offset + 1]
    assert await texts(store, topic) == ["one", "two"]
    detail = await store.transaction(own)
    assert detail is not None
    assert detail.op is not None
    assert (detail.summary.half_count, detail.summary.check_count) == (2, 0)
    assert detail.summary.prepared_at == world.clock.now()
    assert detail.op.released == outcome.released
    assert world.count("half_message") == 0
    again = await decided(store_of_verdict, commit(own))
    assert again == outcome
    stored_bytes_are_exact(world)


@KNOWING
async def test_several_topics_and_queues(
    world: World, store: Store, topic: Topic, guesses: list[bool], *, knowing: bool
) -> None:
    wide = await store.create_topic("wide", TopicSettings(3, HOUR, priority_levels=2))
    if knowing:
        await warm(store, wide)
        for _ in range(TRUSTED_AFTER):
            ok(await store.send([sending(wide, "warm", queue_no=None, priority=1)]))
    group = await store.producer_group_id("shop")
    own = new_id()
    halves = [
        half(topic, "a"),
        half(wide, "b", 2),
        half(wide, "c", priority=1),
        half(topic, "d", keys=["k1", "k2"]),
        half(wide, "e", 2),
    ]
    ok(await store.prepare([PrepareWork(own, group, halves)]))
    broker = await chosen(world, store, topic, knowing=knowing)
    outcome = await decided(broker, commit(own))
    assert guesses == [knowing]
    assert len(outcome.released) == 5
    assert await texts(store, topic) == ["a", "d"]
    assert sorted(await texts(store, wide)) == ["b", "c", "e"]
    assert world.count("message_key") == 2
    for each in (topic, wide):
        await dense(store, each)
    stored_bytes_are_exact(world)


@KNOWING
async def test_rollback_frees_dedup_keys(
    world: World, store: Store, topic: Topic, guesses: list[bool], *, knowing: bool
) -> None:
    group = await store.producer_group_id("shop")
    own = new_id()
    ok(await store.prepare([PrepareWork(own, group, [half(topic, "a", dedup_key="one")])]))
    broker = await chosen(world, store, topic, knowing=knowing)
    outcome = await decided(broker, rollback(own, reason="no"))
    assert guesses == [knowing]
    assert outcome.state is TransactionState.ROLLED_BACK
    sent = (await store.send([sending(topic, "b", dedup_key="one")]))[0]
    assert not isinstance(sent, Duplicate)
    assert await texts(store, topic) == ["b"]


@KNOWING
async def test_several_verdicts_together(
    world: World, store: Store, topic: Topic, guesses: list[bool], *, knowing: bool
) -> None:
    ids = [await prepared(store, topic, bodies=[f"body {number}"]) for number in range(5)]
    broker = await chosen(world, store, topic, knowing=knowing)
    outcomes = await broker.decide([(rollback if number == 2 else commit)(each) for number, each in enumerate(ids)])
    ok(outcomes)
    assert guesses == [knowing]
    assert await texts(store, topic) == ["body 0", "body 1", "body 3", "body 4"]
    await dense(store, topic)


async def test_another_broker_wrote_to_the_queue(world: World, store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    other = world.broker("other")
    own = await prepared(store, topic)
    ok(await other.send([sending(topic, "theirs")]))
    outcome = await decided(store, commit(own))
    assert outcome.released == ((topic.queue_ids[0], TRUSTED_AFTER + 1),)
    # It looks until nobody else was there for a while.
    for _ in range(TRUSTED_AFTER - 1):
        await decided(store, commit(await prepared(store, topic)))
    assert not any(guesses[1:])
    await decided(store, commit(await prepared(store, topic)))
    assert guesses[-1]
    ok(await store.send([sending(topic, "mine")]))
    ok(await other.send([sending(topic, "theirs")]))
    ok(await store.send([sending(topic, "mine")]))
    assert len(await log_of(store, topic)) == 2 * TRUSTED_AFTER + 5
    await dense(store, topic)
    stored_bytes_are_exact(world)


@pytest.mark.parametrize("theirs", [commit, rollback])
@pytest.mark.parametrize("mine", [commit, rollback])
async def test_another_broker_decided_it(
    world: World, store: Store, topic: Topic, guesses: list[bool], theirs: Any, mine: Any
) -> None:
    await warm(store, topic)
    own = await prepared(store, topic)
    first = await decided(world.broker("other"), theirs(own))
    guesses.clear()
    (outcome,) = await store.decide([mine(own)])
    assert guesses == [True, False]
    if theirs is mine:
        assert outcome == first
    else:
        of(VerdictConflict, outcome)
    assert len(await log_of(store, topic)) == TRUSTED_AFTER + (theirs is commit)
    await dense(store, topic)


async def test_another_broker_added_a_message(world: World, store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    own = await prepared(store, topic, bodies=["one"])
    other = world.broker("other")
    group = await other.producer_group_id("shop")
    ok(await other.prepare([PrepareWork(own, group, [half(topic, "two")], first_position=1)]))
    outcome = await decided(store, commit(own))
    assert guesses == [True, False]
    assert len(outcome.released) == 2
    assert await texts(store, topic) == ["one", "two"]


@pytest.mark.parametrize("count", [1, prepared_here.MOST_HALVES - 1, prepared_here.MOST_HALVES])
async def test_this_broker_added_messages(store: Store, topic: Topic, guesses: list[bool], count: int) -> None:
    """One after the other, as long as a transaction is not large; each may be repeated."""
    await warm(store, topic)
    own = await prepared(store, topic, bodies=["0"])
    group = await store.producer_group_id("shop")
    for position in [each for number in range(count) for each in (number + 1, number + 1)]:
        ok(await store.prepare([PrepareWork(own, group, [half(topic, f"{position}")], first_position=position)]))
    assert len((await decided(store, commit(own))).released) == count + 1
    assert guesses == [count < prepared_here.MOST_HALVES]
    assert await texts(store, topic) == [f"{number}" for number in range(count + 1)]


async def test_both_brokers_added_messages(world: World, store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    own = await prepared(store, topic, bodies=["0"])
    group = await store.producer_group_id("shop")
    for position, broker in ((1, world.broker("other")), (2, store)):
        ok(await broker.prepare([PrepareWork(own, group, [half(topic, f"{position}")], first_position=position)]))
    assert len((await decided(store, commit(own))).released) == 3
    assert guesses == [False]
    assert await texts(store, topic) == ["0", "1", "2"]


@pytest.mark.parametrize("verdict", [commit, rollback])
@pytest.mark.parametrize("missing", ["checked", "decided", "of another time"])
async def test_one_has_more_and_another_one_has_less(
    world: World, store: Store, topic: Topic, guesses: list[bool], missing: str, verdict: Any
) -> None:
    """Together they have as many half messages as are known."""
    await warm(store, topic)
    more, less = [await prepared(store, topic, bodies=[body]) for body in ("more", "less")]
    other = world.broker("other")
    group = await other.producer_group_id("shop")
    added = half(topic, "added", dedup_key="key")
    ok(await other.prepare([PrepareWork(more, group, [added], first_position=1)]))
    session = world.session()
    session.begin()
    if missing == "checked":
        session.run("UPDATE half_message SET check_count = 1 WHERE transaction_id = ?", (less,))
    elif missing == "decided":
        session.run("DELETE FROM half_message WHERE transaction_id = ?", (less,))
    else:
        session.run("UPDATE half_message SET born_at = born_at - 1 WHERE transaction_id = ?", (less,))
    session.commit()
    outcomes = await store.decide([verdict(more), verdict(less)])
    assert guesses[0] is True
    assert isinstance(outcomes[0], TransactionOutcome)
    left = [] if missing == "decided" else ["less"]
    assert sorted(await texts(store, topic)) == (sorted(["more", "added", *left]) if verdict is commit else [])
    detail = await store.transaction(more)
    assert detail is not None
    assert detail.summary.half_count == 2
    assert world.count("half_message") == 0
    # A rollback gives the key back, a commit keeps it.
    (again,) = await store.send([sending(topic, "again", dedup_key="key")])
    assert isinstance(again, Duplicate) is (verdict is commit)
    await dense(store, topic)


async def test_an_id_that_came_again_with_other_content(
    world: World, store: Store, topic: Topic, guesses: list[bool]
) -> None:
    """Long after its verdict, which is forgotten; what this broker knows of it is from the first time."""
    await warm(store, topic)
    other = world.broker("other")
    elsewhere = await other.create_topic("elsewhere", TopicSettings(1, HOUR))
    own = await prepared(store, topic, bodies=["first"])
    ok(await other.decide([rollback(own)]))
    session = world.session()
    session.begin()
    session.run("DELETE FROM op_record WHERE transaction_id = ?", (own,))
    session.commit()
    world.clock.pass_time(HOUR)
    group = await other.producer_group_id("shop")
    ok(await other.prepare([PrepareWork(own, group, [half(elsewhere, "second")])]))
    guesses.clear()
    await decided(store, commit(own))
    assert guesses == [True, False]
    assert await texts(store, topic) == []
    assert await texts(store, elsewhere) == ["second"]


async def test_a_message_that_comes_to_two_brokers(
    world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that looks takes the queue and then the op record, and so does the one that guesses: no deadlock."""
    await warm(store, topic)
    caplog.set_level(logging.INFO, "halfmq.storage")
    work = [sending(topic, "same")]
    pause = Pause(monkeypatch, appending, "take_offsets")
    looking = asyncio.ensure_future(world.broker("other").send(work))
    await pause.reached()
    guessing = asyncio.ensure_future(store.send(work))
    await waits_or_ends(world, guessing)
    pause.go_on()
    (first,), (second,) = await asyncio.gather(looking, guessing)
    assert first == second
    assert await texts(store, topic) == ["same"]
    assert "rows are held by others" not in caplog.text


async def test_it_was_checked_meanwhile(world: World, store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    own = await prepared(store, topic)
    session = world.session()
    session.begin()
    session.run("UPDATE half_message SET check_count = 2 WHERE transaction_id = ?", (own,))
    session.commit()
    await decided(store, commit(own, VerdictSource.CHECK))
    assert guesses == [True, False]
    detail = await store.transaction(own)
    assert detail is not None
    assert detail.summary.check_count == 2


async def test_it_was_parked_and_set_to_check_again(
    world: World, store: Store, topic: Topic, guesses: list[bool]
) -> None:
    await warm(store, topic)
    own = await prepared(store, topic)
    session = world.session()
    session.begin()
    session.run("UPDATE half_message SET parked_at = 77 WHERE transaction_id = ?", (own,))
    session.commit()
    await decided(store, commit(own))
    assert guesses == [True, False]
    detail = await store.transaction(own)
    assert detail is not None
    assert detail.parked_at == 77


async def test_the_topic_was_deleted(world: World, store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    own = await prepared(store, topic)
    vanished(world, topic)
    (outcome,) = await store.decide([commit(own)])
    assert guesses == [True, False]
    of(NotFound, outcome)
    of(NotFound, (await store.send([sending(topic)]))[0])
    assert (await decided(store, rollback(own))).state is TransactionState.ROLLED_BACK


async def test_unknown_and_repeated(store: Store, topic: Topic, guesses: list[bool]) -> None:
    await warm(store, topic)
    own, gone = await prepared(store, topic), new_id()
    outcomes = await store.decide([commit(own), commit(gone), commit(own), rollback(own)])
    assert guesses == [False]
    assert outcomes[0] == outcomes[2]
    of(NotFound, outcomes[1])
    of(VerdictConflict, outcomes[3])


async def test_the_end_moved_back(world: World, store: Store, topic: Topic) -> None:
    """As after the restore of an older copy of the database: who gave offsets does not give them again."""
    await warm(store, topic)
    half_sent = await prepared(store, topic)
    session = world.session()
    session.begin()
    session.run("DELETE FROM message WHERE log_offset = ?", (TRUSTED_AFTER - 1,))
    session.run("UPDATE queue SET next_offset = next_offset - 1, stored_bytes = stored_bytes - 4")
    session.commit()
    for work in (store.send([sending(topic, "after")]), store.decide([commit(half_sent)])):
        with pytest.raises(StorageUnavailable, match="in an earlier state"):
            await work
    other = world.broker("other")
    for _ in range(TRUSTED_AFTER + 2):
        ok(await other.send([sending(topic, "after")]))
        await decided(other, commit(await prepared(other, topic)))
    await dense(other, topic)
    stored_bytes_are_exact(world)


async def test_sends_that_are_repeated(store: Store, topic: Topic) -> None:
    await warm(store, topic)
    first = sending(topic, "once")
    places = await store.send([first, sending(topic, "also")])
    ok(places)
    again = await store.send([sending(topic, "once", first.message_id)])
    assert again == places[:1]
    half_sent = await prepared(store, topic)
    (refused,) = await store.send([sending(topic, "hello", half_sent)])
    assert getattr(refused, "reason", "") == "MESSAGE_ID_REUSED"
    assert await texts(store, topic) == ["once", "also"]
    await dense(store, topic)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("whole", [True, False], ids=["packet", "commit"])
class TestLateCommit:
    """The connection breaks while the one packet is on its way; the server executes it later, or never."""

    async def test_a_send(
        self, world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, arrives: bool, whole: bool
    ) -> None:
        await warm(store, topic)
        work = [sending(topic), sending(topic)]
        late = LateCommit(world, monkeypatch, whole=whole)
        places = await late.during(store.send(work), arrives=arrives)
        assert places == [(topic.queue_ids[0], TRUSTED_AFTER + number) for number in range(2)]
        assert await store.send(work) == places
        assert len(await log_of(store, topic)) == TRUSTED_AFTER + 2
        stored_bytes_are_exact(world)

    async def test_a_verdict(
        self, world: World, store: Store, topic: Topic, monkeypatch: pytest.MonkeyPatch, arrives: bool, whole: bool
    ) -> None:
        await warm(store, topic)
        own = await prepared(store, topic)
        late = LateCommit(world, monkeypatch, whole=whole)
        (outcome,) = await late.during(store.decide([commit(own)]), arrives=arrives)
        assert isinstance(outcome, TransactionOutcome)
        assert outcome.released == ((topic.queue_ids[0], TRUSTED_AFTER),)
        assert await decided(store, commit(own)) == outcome
        assert len(await log_of(store, topic)) == TRUSTED_AFTER + 1
        stored_bytes_are_exact(world)


class TestQueueEnds:
    def test_a_queue_is_trusted_after_takes_in_a_row(self) -> None:
        ends = QueueEnds()
        for number in range(TRUSTED_AFTER):
            assert ends.guess([1]) is None
            ends.note({1: (number, number + 1)})
        assert ends.guess([1]) == {1: TRUSTED_AFTER}
        assert ends.guess([1, 2]) is None
        assert ends.guess([]) == {}
        ends.note({1: (50, 52)})
        assert ends.guess([1]) is None

    def test_one_that_is_noted_late_changes_nothing(self) -> None:
        ends = QueueEnds()
        for number in range(TRUSTED_AFTER):
            ends.note({1: (number, number + 1)})
        ends.note({1: (0, 1)})
        assert ends.guess([1]) == {1: TRUSTED_AFTER}
        ends.forget([1, 2])
        assert ends.guess([1]) is None

    def test_it_is_bounded(self) -> None:
        ends = QueueEnds()
        for queue_id in range(MOST + 1):
            ends.note({queue_id: (0, 1)})
        assert MOST * 9 // 10 < len(ends._ends) < MOST
        assert MOST in ends._ends


def test_what_is_prepared_is_bounded(topic: Topic) -> None:
    known = prepared_here.PreparedHere()
    ids = [new_id() for _ in range(prepared_here.MOST + 1)]
    known.note([PrepareWork(each, 1, [half(topic)]) for each in ids], 7)
    assert known.find(ids[:1]) is None
    newest = ids[prepared_here.MOST // 10 :]
    found = known.find(newest)
    assert found is not None
    assert {each.born_at for each in found.values()} == {7}
    known.forget(newest[:1])
    assert known.find(newest[:1]) is None


@pytest.mark.parametrize(
    "halves",
    [
        lambda topic: [half(topic)] * (prepared_here.MOST_HALVES + 1),
        lambda topic: [half(topic, deliver_at=2)],
        lambda topic: [half(topic, keys=["k" * prepared_here.LONGEST_KEYS])],
        lambda topic: [half(topic, keys=["k" * (prepared_here.LONGEST_KEYS // 2)])] * 2,
    ],
    ids=["many", "delayed", "long keys", "long keys together"],
)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_what_is_unusual_is_not_remembered(topic: Topic, halves: Callable[[Topic], Sequence[Any]]) -> None:
    known = prepared_here.PreparedHere()
    own = new_id()
    known.note([PrepareWork(own, 1, list(halves(topic)))], 7)
    assert known.find([own]) is None
    known.note([PrepareWork(own, 1, [half(topic)])], 7)
    assert known.find([own]) is not None
    known.note_added(own, 1, list(halves(topic)))
    assert known.find([own]) is None
    known.note([PrepareWork(own, 1, [half(topic)], checked=False)], 7)
    assert known.find([own]) is None
