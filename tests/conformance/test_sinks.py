"""Sinks: each epoch is released whole and once, whatever is repeated, lost, or written twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import TopicSettings
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import AlreadyExists, BrokerError, NotFound, Refused
from broker.ports.epochs import NO_EPOCH, Epoch, SinkWork
from broker.ports.transactions import PrepareWork, TransactionFilter
from broker.storage.transactions.epochs import DECIDED_AT_ONCE
from conformance.world import (
    HOUR,
    POLICY,
    World,
    commit,
    decided,
    everywhere,
    half,
    log_of,
    new_id,
    of,
    prepared,
    rollback,
)

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

DAY = 24 * HOUR


def epoch(number: int = 0, query: str = "query", *, take_over: bool = False) -> Epoch:
    return Epoch("archive", query, number, take_over)


async def write(
    store: Store,
    topic: Topic,
    *names: str,
    at: Epoch | None = None,
    attempt: bytes | None = None,
    transaction_id: bytes | None = None,
) -> bytes:
    """Writes messages as an attempt of a task; the attempt's name."""
    attempt = attempt or new_id()
    group = await store.producer_group_id("%SINK%archive")
    halves = PrepareWork(transaction_id or new_id(), group, [half(topic, name) for name in names], checked=False)
    outcome = await store.prepare_epoch(SinkWork(at or epoch(), attempt, halves))
    assert outcome is False, outcome
    return attempt


async def contents(store: Store, topic: Topic) -> list[str]:
    return [message.body.decode() for message in await everywhere(store, topic)]


def nothing_waits(world: World) -> None:
    assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)


async def test_an_epoch_is_released_whole(world: World, store: Store, topic: Topic) -> None:
    one = await write(store, topic, "a", "b")
    await write(store, topic, "c", attempt=one)
    two = await write(store, topic, "d")
    assert await contents(store, topic) == []
    state = await store.find_sink("archive")
    assert (state.query_id, state.committed_epoch, state.waiting) == ("query", None, 4)
    done = await store.commit_epoch(epoch(), {one: 3, two: 1})
    assert (done.already, done.messages) == (False, 4)
    assert done.end_offsets == {(topic.topic_id, topic.queue_ids[0]): 4}
    assert await contents(store, topic) == ["a", "b", "c", "d"]
    state = await store.find_sink("archive")
    assert (state.committed_epoch, state.committed_at, state.waiting) == (0, world.clock.now(), 0)
    nothing_waits(world)


async def test_an_epoch_goes_to_all_queues(store: Store) -> None:
    """As far as it has transactions; those of one attempt in the order in which it wrote them."""
    topic = await store.create_topic("wide", TopicSettings(4, HOUR))
    attempt = new_id()
    names = [f"{number}" for number in range(4 * DECIDED_AT_ONCE)]
    for name in names:
        await write(store, topic, name, attempt=attempt)
    done = await store.commit_epoch(epoch(), {attempt: len(names)})
    assert set(done.end_offsets) == {(topic.topic_id, queue_id) for queue_id in topic.queue_ids}
    share = len(names) // len(topic.queue_ids)
    for number in range(len(topic.queue_ids)):
        found = [message.body.decode() for message in await log_of(store, topic, number)]
        assert found == names[number * share : (number + 1) * share]


async def test_committing_again_changes_nothing(world: World, store: Store, topic: Topic) -> None:
    attempt = await write(store, topic, "a")
    await store.commit_epoch(epoch(), {attempt: 1})
    assert (await store.commit_epoch(epoch(), {attempt: 1})).already
    assert (await store.commit_epoch(epoch(), {new_id(): 7})).already
    assert await contents(store, topic) == ["a"]


async def test_a_committed_epoch_takes_nothing_in(world: World, store: Store, topic: Topic) -> None:
    """A driver killed between its commit and Spark's note writes the same epoch again."""
    await store.commit_epoch(epoch(5), {await write(store, topic, "a", at=epoch(5)): 1})
    for number in (5, 3):
        halves = PrepareWork(new_id(), await store.producer_group_id("g"), [half(topic, "again")], checked=False)
        assert await store.prepare_epoch(SinkWork(epoch(number), new_id(), halves)) is True
    nothing_waits(world)
    assert await contents(store, topic) == ["a"]


async def test_what_other_attempts_wrote_is_dropped(world: World, store: Store, topic: Topic) -> None:
    """Tasks that are tried again, and those that are run twice to be quicker."""
    await write(store, topic, "lost", "half of it")
    kept = await write(store, topic, "kept")
    assert (await store.commit_epoch(epoch(), {kept: 1})).messages == 1
    assert await contents(store, topic) == ["kept"]
    nothing_waits(world)
    assert world.count("op_record", "state = 3") == 1


async def test_an_epoch_of_nothing_counts(store: Store, topic: Topic) -> None:
    assert (await store.commit_epoch(epoch(3), {})).messages == 0
    assert (await store.find_sink("archive")).committed_epoch == 3
    assert (await store.commit_epoch(epoch(2), {})).already


async def test_the_same_messages_again_are_stored_once(world: World, store: Store, topic: Topic) -> None:
    own, attempt = new_id(), new_id()
    for _ in range(2):
        await write(store, topic, "a", "b", attempt=attempt, transaction_id=own)
    assert (await store.find_sink("archive")).waiting == 2
    await store.commit_epoch(epoch(), {attempt: 2})
    assert await contents(store, topic) == ["a", "b"]


@pytest.mark.parametrize("missing", [1, -1])
async def test_an_epoch_that_is_not_whole_is_refused(store: Store, topic: Topic, missing: int) -> None:
    attempt = await write(store, topic, "a", "b")
    with pytest.raises(Refused) as refused:
        await store.commit_epoch(epoch(), {attempt: 2 + missing})
    assert refused.value.reason == "EPOCH_INCOMPLETE"
    assert await contents(store, topic) == []
    await store.commit_epoch(epoch(), {attempt: 2})
    assert await contents(store, topic) == ["a", "b"]


async def test_an_epoch_is_dropped_unless_it_is_committed(world: World, store: Store, topic: Topic) -> None:
    first = await write(store, topic, "a")
    await store.commit_epoch(epoch(0), {first: 1})
    await write(store, topic, "b", at=epoch(1))
    assert await store.abort_epoch(epoch(0)) is True
    assert await store.abort_epoch(epoch(1)) is False
    assert await store.abort_epoch(epoch(1)) is False
    nothing_waits(world)
    again = await write(store, topic, "b again", at=epoch(1))
    await store.commit_epoch(epoch(1), {again: 1})
    assert await contents(store, topic) == ["a", "b again"]


async def test_an_epoch_is_dropped_whoever_has_it(world: World, store: Store, topic: Topic) -> None:
    """Spark does not say of which query it was where every task failed."""
    anonymous = epoch(0, "")
    assert await store.abort_epoch(anonymous) is False
    assert world.count("sink") == 0
    await write(store, topic, "a")
    assert await store.abort_epoch(anonymous) is False
    nothing_waits(world)
    await store.commit_epoch(epoch(), {})
    assert await store.abort_epoch(anonymous) is True


async def test_another_query_is_refused_unless_it_takes_over(world: World, store: Store, topic: Topic) -> None:
    """A checkpoint that was deleted begins at epoch 0 again: that would look like what was committed already."""
    await store.commit_epoch(epoch(7), {await write(store, topic, "old", at=epoch(7)): 1})
    await write(store, topic, "leftover", at=epoch(8))
    halves = PrepareWork(new_id(), await store.producer_group_id("g"), [half(topic, "new")], checked=False)
    refused = await store.prepare_epoch(SinkWork(epoch(0, "other"), new_id(), halves))
    assert isinstance(refused, BrokerError)
    assert refused.reason == "SINK_TAKEN"
    for call in (store.commit_epoch(epoch(0, "other"), {}), store.abort_epoch(epoch(0, "other"))):
        with pytest.raises(Refused) as error:
            await call
        assert error.value.reason == "SINK_TAKEN"
    assert world.count("half_message") == 1
    mine = epoch(0, "other", take_over=True)
    attempt = await write(store, topic, "new", at=mine)
    assert (await store.commit_epoch(mine, {attempt: 1})).messages == 1
    assert await contents(store, topic) == ["old", "new"]
    # The query of before is out.
    with pytest.raises(Refused):
        await store.commit_epoch(epoch(8), {})
    assert await store.drop_sink_leftovers(DAY) == 1
    nothing_waits(world)


async def test_what_waits_for_too_long_is_dropped(world: World, store: Store, topic: Topic) -> None:
    attempts = {await write(store, topic, f"m{number}"): 1 for number in range(DECIDED_AT_ONCE + 3)}
    world.clock.pass_time(DAY)
    assert await store.drop_sink_leftovers(DAY) == 0
    world.clock.pass_time(1)
    assert [await store.drop_sink_leftovers(DAY) for _ in range(3)] == [DECIDED_AT_ONCE, 3, 0]
    nothing_waits(world)
    with pytest.raises(Refused) as refused:
        await store.commit_epoch(epoch(), attempts)
    assert refused.value.reason == "EPOCH_INCOMPLETE"


async def test_many_transactions_are_one(store: Store, topic: Topic) -> None:
    """More than are looked at together; one that cannot be committed holds back all."""
    attempts = {await write(store, topic, *[f"{task}-{n}" for n in range(20)]): 20 for task in range(25)}
    done = await store.commit_epoch(epoch(), attempts)
    assert done.messages == 500
    assert len(set(await contents(store, topic))) == 500


async def test_producers_and_operators_do_not_decide_it(world: World, store: Store, topic: Topic) -> None:
    own = new_id()
    attempt = await write(store, topic, "a", transaction_id=own)
    for verdict in (
        commit(own),
        rollback(own),
        commit(own, VerdictSource.OPERATOR, reason="r", operator="me"),
        rollback(own, VerdictSource.CHECK),
    ):
        assert of(Refused, (await store.decide([verdict]))[0]).reason == "SINK_DECIDES"
    with pytest.raises(Refused) as refused:
        await store.check_again(own, POLICY, "me", "because")
    assert refused.value.reason == "SINK_DECIDES"
    await store.commit_epoch(epoch(), {attempt: 1})
    detail = await store.transaction(own)
    assert detail is not None
    assert detail.op is not None
    assert (detail.op.source, detail.summary.state) == (VerdictSource.SINK, TransactionState.COMMITTED)


async def test_nobody_is_asked_about_it(world: World, store: Store, topic: Topic) -> None:
    group = await store.producer_group_id("%SINK%archive")
    await write(store, topic, "a")
    world.clock.pass_time(10 * POLICY.interval)
    assert await store.claim_checks([group], POLICY, 10) == []
    assert await store.overdue(0) == []
    search = TransactionFilter(
        state=None, producer_group=None, topic_id=None, prepared_before=None, after=b"", limit=10
    )
    (listed,) = (await store.list_transactions(search)).entries
    assert (listed.producer_group, listed.state, listed.next_check_at) == (
        "%SINK%archive",
        TransactionState.PREPARED,
        None,
    )


async def test_a_topic_that_waits_for_an_epoch_is_not_deleted(store: Store, topic: Topic) -> None:
    attempt = await write(store, topic, "a")
    with pytest.raises(Refused):
        await store.delete_topic(topic)
    await store.commit_epoch(epoch(), {attempt: 1})
    assert [message.offset for message in await log_of(store, topic)] == [0]


async def test_brokers_commit_one_epoch_at_once(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    for number in range(5):
        attempts = {
            await write(each, topic, f"{number}{name}", at=epoch(number)): 1
            for each, name in ((store, "a"), (other, "b"))
        }
        done = await asyncio.gather(
            *(each.commit_epoch(epoch(number), attempts) for each in (store, other, store, other))
        )
        assert sorted(each.messages for each in done) == [0, 0, 0, 2]
    assert sorted(await contents(store, topic)) == [f"{number}{name}" for number in range(5) for name in "ab"]


async def test_ids_of_sinks_and_of_producers_are_kept_apart(world: World, store: Store, topic: Topic) -> None:
    own = new_id()
    attempt = await write(store, topic, "a", transaction_id=own)
    group = await store.producer_group_id("producers")
    more = PrepareWork(own, group, [half(topic, "more")], first_position=1)
    assert of(AlreadyExists, (await store.prepare([more]))[0]).reason == "TRANSACTION_ID_REUSED"
    theirs = await prepared(store, topic)
    halves = PrepareWork(theirs, group, [half(topic)], checked=False)
    assert of(AlreadyExists, await store.prepare_epoch(SinkWork(epoch(), attempt, halves))).field == "transaction_id"
    await store.commit_epoch(epoch(), {attempt: 1})
    await decided(store, commit(theirs))
    assert await contents(store, topic) == ["a", "hello"]


async def test_a_sink_is_forgotten_with_what_waits(world: World, store: Store, topic: Topic) -> None:
    await store.commit_epoch(epoch(0), {await write(store, topic, "a"): 1})
    await write(store, topic, "b", at=epoch(1))
    await store.delete_sink("archive")
    nothing_waits(world)
    with pytest.raises(NotFound):
        await store.delete_sink("archive")
    other = epoch(0, "other")
    await store.commit_epoch(other, {await write(store, topic, "c", at=other): 1})
    assert await contents(store, topic) == ["a", "c"]


async def test_there_is_no_such_sink(store: Store) -> None:
    with pytest.raises(NotFound) as missing:
        await store.find_sink("nothing")
    assert missing.value.reason == "SINK_NOT_FOUND"


async def test_commits_under_way_do_not_hold_up_look_ups(world: World, store: Store, topic: Topic) -> None:
    """More epochs at a time than there are threads of any kind, and none of them gets on."""
    attempt = await write(store, topic, "a")
    blocker = world.session()
    blocker.begin(write=True)
    blocker.fetch("SELECT sink_id FROM sink WHERE name = ?" + blocker.dialect.for_update, ("archive",))
    commits = [asyncio.create_task(store.commit_epoch(epoch(), {attempt: 1})) for _ in range(5)]
    aborts = [asyncio.create_task(store.abort_epoch(epoch(1))) for _ in range(3)]
    try:
        for _ in range(5):
            state = await asyncio.wait_for(store.find_sink("archive"), 10)
            assert (state.committed_epoch, state.waiting) == (None, 1)
        assert not any(task.done() for task in (*commits, *aborts))
    finally:
        blocker.rollback()
    assert sorted(each.already for each in await asyncio.gather(*commits)) == [False, True, True, True, True]
    assert await asyncio.gather(*aborts) == [False] * 3
    assert await contents(store, topic) == ["a"]


async def test_an_epoch_follows_the_one_that_it_names(store: Store, topic: Topic) -> None:
    first = await write(store, topic, "a", "b", at=epoch(2))
    late = await write(store, topic, "a", "b", "c", at=epoch(3))
    with pytest.raises(Refused) as refused:
        await store.commit_epoch(epoch(2), {first: 2}, after=0)
    assert (refused.value.reason, refused.value.field) == ("EPOCH_NOT_NEXT", "after")
    assert not (await store.commit_epoch(epoch(2), {first: 2}, after=NO_EPOCH)).already
    # The same call again, and the one that began from nothing as well.
    assert (await store.commit_epoch(epoch(2), {first: 2}, after=NO_EPOCH)).already
    with pytest.raises(Refused, match="the last one committed is 2"):
        await store.commit_epoch(epoch(3), {late: 3}, after=NO_EPOCH)
    assert await contents(store, topic) == ["a", "b"]
    following = await write(store, topic, "c", at=epoch(3))
    await store.commit_epoch(epoch(3), {following: 1}, after=2)
    assert await contents(store, topic) == ["a", "b", "c"]
