"""Positions of sinks: stored with their epoch or not at all; and transactions that are written with a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, BrokerError, NotFound, Refused
from broker.ports.epochs import Epoch, EpochWrites, SinkWork
from broker.ports.transactions import PrepareWork
from conformance.world import HOUR, World, commit, everywhere, half, ok, prepared, rollback

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


def epoch(number: int = 0, query: str = "query", *, take_over: bool = False) -> Epoch:
    return Epoch("changes", query, number, take_over)


def derived(number: int) -> bytes:
    return bytes([0, 0, 0, number, 0, 0, 0x80, 0, 0x80, 0, 0, 0, 0, 0, 0, 0])


def transaction(topic: Topic, own: bytes, *names: str) -> PrepareWork:
    return PrepareWork(own, 1, [half(topic, name) for name in names], checked=False)


async def contents(store: Store, topic: Topic) -> list[str]:
    return [message.body.decode() for message in await everywhere(store, topic)]


async def prepare(store: Store, topic: Topic, at: Epoch, own: bytes, *names: str) -> bool | BrokerError:
    return await store.prepare_epoch(SinkWork(at, derived(99), transaction(topic, own, *names)))


async def test_position_and_messages_come_together_once(store: Store, topic: Topic) -> None:
    writes = EpochWrites([transaction(topic, derived(1), "a", "b"), transaction(topic, derived(2), "c")], b"after 2")
    done = await store.commit_epoch(epoch(1), {}, writes)
    assert (done.already, done.messages) == (False, 3)
    assert sum(done.end_offsets.values()) == 3
    assert (await store.commit_epoch(epoch(1), {}, EpochWrites(writes.transactions, b"again"))).already
    assert await contents(store, topic) == ["a", "b", "c"]
    assert (await store.find_sink("changes")).position == b"after 2"


async def test_the_position_outlives_a_take_over_and_commits_without_one(store: Store, topic: Topic) -> None:
    await store.commit_epoch(epoch(7), {}, EpochWrites(position=b"seven"))
    await store.commit_epoch(epoch(8), {})
    await store.commit_epoch(epoch(0, "other", take_over=True), {})
    state = await store.find_sink("changes")
    assert (state.query_id, state.committed_epoch, state.position) == ("other", 0, b"seven")
    with pytest.raises(Refused) as refused:
        await store.commit_epoch(epoch(9), {}, EpochWrites([transaction(topic, derived(1), "late")], b"nine"))
    assert refused.value.reason == "SINK_TAKEN"
    assert await contents(store, topic) == []
    assert (await store.find_sink("changes")).position == b"seven"


async def test_what_was_committed_under_an_id_is_left_out(store: Store, topic: Topic) -> None:
    """A job that was set back reads the same rows again."""
    await store.commit_epoch(epoch(1), {}, EpochWrites([transaction(topic, derived(1), "a")], b"1"))
    again = [
        transaction(topic, derived(1), "a"),
        transaction(topic, derived(2), "b"),
        transaction(topic, derived(2), "b"),
    ]
    assert (await store.commit_epoch(epoch(2), {}, EpochWrites(again, b"2"))).messages == 1
    assert await contents(store, topic) == ["a", "b"]


async def test_an_id_of_a_transaction_that_waits_for_its_verdict_is_refused(
    world: World, store: Store, topic: Topic
) -> None:
    """Its producer's verdict would be lost otherwise: an op record would be there before."""
    own = await prepared(store, topic)
    with pytest.raises(AlreadyExists):
        await store.commit_epoch(epoch(1), {}, EpochWrites([transaction(topic, own, "a")], b"1"))
    assert await contents(store, topic) == []
    ok(await store.decide([commit(own)]))
    assert await contents(store, topic) == ["hello"]


async def test_an_id_that_an_attempt_before_has_stored_is_written(world: World, store: Store, topic: Topic) -> None:
    await prepare(store, topic, epoch(1), derived(1), "a")
    await store.commit_epoch(epoch(2), {}, EpochWrites([transaction(topic, derived(1), "a")], b"2"))
    assert await contents(store, topic) == ["a"]


async def test_an_id_that_was_rolled_back_is_refused_not_left_out(store: Store, topic: Topic) -> None:
    own = await prepared(store, topic)
    ok(await store.decide([rollback(own)]))
    writes = EpochWrites([transaction(topic, derived(1), "b"), transaction(topic, own, "a")], b"1")
    with pytest.raises(AlreadyExists) as refused:
        await store.commit_epoch(epoch(1), {}, writes)
    assert refused.value.reason == "MESSAGE_ID_REUSED"
    assert await contents(store, topic) == []
    with pytest.raises(NotFound):
        await store.find_sink("changes")


async def test_groups_keys_and_ids_are_those_of_any_message(store: Store) -> None:
    topic = await store.create_topic("wide", TopicSettings(4, HOUR))
    work = transaction(topic, derived(3), "one", "two")
    for number, each in enumerate(work.halves):
        each.queue_no, each.message.message_group, each.message.keys = number, f"group {number}", (f"key {number}",)
    done = await store.commit_epoch(epoch(1), {}, EpochWrites([work]))
    assert done.end_offsets == {(topic.topic_id, topic.queue_ids[0]): 1, (topic.topic_id, topic.queue_ids[1]): 1}
    found = await everywhere(store, topic)
    assert [(each.transaction_id, each.position, each.message_group) for each in found] == [
        (derived(3), 0, "group 0"),
        (derived(3), 1, "group 1"),
    ]


async def test_nothing_is_written_for_a_deleted_topic(store: Store, topic: Topic) -> None:
    gone = await store.create_topic("gone", TopicSettings(1, HOUR))
    await store.delete_topic(gone)
    work = [transaction(topic, derived(1), "a"), transaction(gone, derived(2), "b")]
    with pytest.raises(NotFound):
        await store.commit_epoch(epoch(1), {}, EpochWrites(work, b"1"))
    assert await contents(store, topic) == []


async def test_a_derived_id_is_stored_again_after_it_was_dropped(world: World, store: Store, topic: Topic) -> None:
    assert await prepare(store, topic, epoch(1), derived(1), "a") is False
    await store.abort_epoch(epoch(1))
    assert world.count("half_message") == 0
    assert await prepare(store, topic, epoch(1), derived(1), "a") is False
    # Another epoch takes it along, and so does another query.
    assert await prepare(store, topic, epoch(4), derived(1), "a") is False
    await store.commit_epoch(epoch(0, "other", take_over=True), {})
    assert await prepare(store, topic, epoch(3, "other"), derived(1), "a") is False
    outcome = await prepare(store, topic, epoch(1), derived(1), "a")
    assert isinstance(outcome, Refused)
    await store.drop_sink_leftovers(HOUR)
    assert (await store.commit_epoch(epoch(3, "other"), {derived(99): 1})).messages == 1
    assert await contents(store, topic) == ["a"]
    assert (world.count("half_message"), world.count("sink_transaction")) == (0, 0)
