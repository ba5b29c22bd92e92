"""Settings of topics: priorities by queues, changing them in use, and what they hold at most."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.domain.topic import DAY, Topic, TopicChange, TopicSettings
from broker.errors import InvalidArgument, NotFound, Refused
from broker.ports.log import RecallWork
from broker.ports.transactions import PrepareWork
from broker.storage.engine.session import Session
from broker.storage.retention.trimming import CHUNK
from conformance.world import (
    HOUR,
    START,
    World,
    commit,
    decided,
    everywhere,
    half,
    log_of,
    new_id,
    ok,
    sending,
    stored_bytes_are_exact,
    swept,
)

if TYPE_CHECKING:
    from broker.storage.adapters.store import Store

SETTINGS = TopicSettings(2, HOUR, 12345, DAY * 2, 4)


async def test_a_topic_has_all_its_settings(world: World, store: Store) -> None:
    made = await store.create_topic("urgent", SETTINGS)
    assert made.settings == SETTINGS
    assert (made.queue_count, len(made.queue_ids), made.priorities) == (2, 5, (0, 0, 1, 2, 3))
    assert made.group_queues == 2
    assert await world.broker("b").find_topic("urgent") == made
    assert await store.list_topics("", 10) == [made]


async def test_each_priority_has_its_queue(world: World, store: Store) -> None:
    topic = await store.create_topic("urgent", TopicSettings(2, HOUR, priority_levels=3))
    sent = [sending(topic, f"s{n}", queue_no=None, priority=n % 3) for n in range(6)]
    ok(await store.send(sent))
    ok(await store.send([sending(topic, "later", queue_no=None, priority=2, deliver_at=START + 5)]))
    transaction_id = new_id()
    halves = [half(topic, f"h{n}", priority=n) for n in range(3)]
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), halves)]))
    await decided(store, commit(transaction_id))
    world.clock.pass_time(5)
    assert (await store.move_due()).count == 1

    async def bodies(queue_no: int) -> list[bytes]:
        return [message.body for message in await log_of(store, topic, queue_no)]

    assert await bodies(2) == [b"s1", b"s4", b"h1"]
    assert await bodies(3) == [b"s2", b"s5", b"h2", b"later"]
    assert sorted([*await bodies(0), *await bodies(1)]) == [b"h0", b"s0", b"s3"]
    assert [message.priority for message in await log_of(store, topic, 3)] == [2] * 4
    detail = await store.transaction(transaction_id)
    assert detail is not None
    stored_bytes_are_exact(world)


async def test_queues_are_added_in_use(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(2, HOUR, priority_levels=2))
    other = world.broker("b")
    assert await other.find_topic("orders") == topic
    changed = await store.update_topic(topic, TopicChange(queue_count=5))
    assert changed.queue_ids[:3] == topic.queue_ids
    assert (changed.priorities, changed.queue_count, changed.group_queues) == ((0, 0, 1, 0, 0, 0), 5, 2)
    assert await store.find_topic("orders") == changed, "this broker knows at once"
    assert [changed.queue_of_group(f"g{n}") for n in range(50)] == [topic.queue_of_group(f"g{n}") for n in range(50)]
    for _ in range(10):
        ok(await store.send([sending(changed, queue_no=None)]))
    assert [len(await log_of(store, changed, n)) for n in range(6)] == [2, 2, 0, 2, 2, 2]
    assert [await other.find_topic_of_queue(queue_id) for queue_id in changed.queue_ids[3:]] == [
        (changed, n) for n in (3, 4, 5)
    ]
    assert len(await everywhere(store, changed)) == 8, "queue numbers go past queue_count where there are priorities"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (TopicChange(queue_count=1), "queue_count"),
        (TopicChange(queue_count=0), "queue_count"),
        (TopicChange(queue_count=1025), "queue_count"),
        (TopicChange(retention=0), "retention"),
        (TopicChange(retention=101 * 366 * DAY), "retention"),
        (TopicChange(retention_bytes=1 << 63), "retention_bytes"),
        (TopicChange(dedup_window=0), "dedup_window"),
        (TopicChange(dedup_window=367 * DAY), "dedup_window"),
    ],
)
async def test_what_cannot_be_set(store: Store, change: TopicChange, field: str) -> None:
    topic = await store.create_topic("orders", TopicSettings(2, HOUR))
    with pytest.raises(InvalidArgument) as refused:
        await store.update_topic(topic, change)
    assert refused.value.field == field
    assert await store.find_topic("orders") == topic


async def test_what_is_not_named_stays(store: Store) -> None:
    topic = await store.create_topic("orders", SETTINGS)
    changed = await store.update_topic(topic, TopicChange(retention=DAY))
    changed = await store.update_topic(changed, TopicChange(retention_bytes=0, dedup_window=1))
    assert changed.settings == TopicSettings(2, DAY, 0, 1, 4)
    await store.delete_topic(changed)
    with pytest.raises(NotFound):
        await store.update_topic(changed, TopicChange(retention=DAY))


async def test_changes_at_the_same_time(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR))
    brokers = [store, world.broker("b"), world.broker("c")]
    changes = [TopicChange(queue_count=n) for n in range(2, 8)] + [TopicChange(dedup_window=n) for n in range(1, 4)]
    results = await asyncio.gather(
        *(brokers[n % 3].update_topic(topic, change) for n, change in enumerate(changes)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, Topic | InvalidArgument), result
    found = await world.broker("d").find_topic("orders")
    assert found is not None
    assert (found.queue_count, len(set(found.queue_ids)), found.dedup_window in {1, 2, 3}) == (7, 7, True)
    assert world.count("queue") == 7


# --- bytes


async def test_bytes_are_counted_and_taken_off(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "x" * n) for n in range(1, 50)]))
    ok(await store.send([sending(topic, "x" * n, deliver_at=START + 1) for n in range(1, 50)]))
    transaction_id = new_id()
    halves = [half(topic, "x" * n) for n in range(1, 50)]
    ok(await store.prepare([PrepareWork(transaction_id, await store.producer_group_id("shop"), halves)]))
    await decided(store, commit(transaction_id))
    stored_bytes_are_exact(world)
    world.clock.pass_time(HOUR)
    assert (await store.move_due()).count == 49
    stored_bytes_are_exact(world)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 98
    stored_bytes_are_exact(world)
    assert len(await log_of(store, topic)) == 49


async def test_the_oldest_go_first_across_queues(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(3, HOUR, retention_bytes=250))
    for number in range(20):
        ok(await store.send([sending(topic, f"{number:02}".ljust(30), queue_no=(number * number) % 3)]))
        world.clock.pass_time(1)
    while await store.trim_topic(topic):
        stored_bytes_are_exact(world)
    kept = sorted(int(message.body) for message in await everywhere(store, topic))
    assert kept == list(range(12, 20)), "eight of thirty bytes fit"
    for state in await store.queue_states(topic, None):
        messages = await log_of(store, topic, state.queue_no)
        assert state.max_offset - state.min_offset == len(messages)
    assert await store.trim_topic(topic) == 0


async def test_size_goes_in_pieces(world: World, store: Store) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR, retention_bytes=10))
    for _ in range(5):
        ok(await store.send([sending(topic, "x") for _ in range(CHUNK // 2)]))
    assert [await store.trim_topic(topic) for _ in range(4)] == [CHUNK, CHUNK, CHUNK // 2 - 10, 0]
    stored_bytes_are_exact(world)


async def test_no_bound_keeps_all(store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "x" * 1000)]))
    assert await store.trim_topic(topic) == 0


async def test_two_brokers_that_trim_together(world: World, store: Store) -> None:
    other = world.broker("b")
    topic = await store.create_topic("orders", TopicSettings(2, HOUR, retention_bytes=100))
    for _ in range(10):
        ok(await store.send([sending(topic, "x" * 10, queue_no=n % 2, keys=("k",)) for n in range(40)]))
        world.clock.pass_time(HOUR // 4)
        await asyncio.gather(
            store.trim_topic(topic),
            other.trim_topic(topic),
            *(broker.trim_queue(topic, i) for broker in (store, other) for i in topic.queue_ids),
            store.send([sending(topic, "y", queue_no=n % 2) for n in range(10)]),
        )
        stored_bytes_are_exact(world)
    while await store.trim_topic(topic):
        pass
    stored_bytes_are_exact(world)
    assert sum(len(m.body) for m in await everywhere(store, topic)) <= 100
    with_keys = sum(bool(message.keys) for message in await everywhere(store, topic))
    assert world.count("message_key") == with_keys


# --- deletion


async def test_scheduled_messages_keep_their_topic(store: Store, topic: Topic) -> None:
    work = sending(topic, deliver_at=START + HOUR)
    ok(await store.send([work]))
    with pytest.raises(Refused, match="recall them") as refused:
        await store.delete_topic(topic)
    assert refused.value.reason == "TOPIC_IN_USE"
    ok(await store.recall([RecallWork(work.message_id, 0)]))
    await store.delete_topic(topic)


async def test_all_that_a_topic_left_goes(world: World, store: Store, topic: Topic) -> None:
    kept = await store.create_topic("kept", TopicSettings(2, HOUR))
    for each in (topic, kept):
        for _ in range(3):
            ok(await store.send([sending(each, keys=("a", "b"), dedup_key=new_id().hex()) for _ in range(500)]))
    await store.delete_topic(topic)
    rows = {name: world.count(name) for name in ("message", "message_key", "dedup_key")}
    assert rows == {"message": 3000, "message_key": 6000, "dedup_key": 3000}
    again = await store.create_topic("orders", TopicSettings(1, HOUR))
    ok(await store.send([sending(again, "new", dedup_key="k")]))
    assert [topic.name for topic in await store.list_topics("", 10)] == ["kept", "orders"]
    assert await store.sweep_deleted_topic(topic.topic_id)
    # As after a crash: another broker goes on.
    await swept(world.broker("b"))
    rows = {name: world.count(name) for name in ("message", "message_key", "dedup_key", "queue", "topic")}
    assert rows == {"message": 1501, "message_key": 3000, "dedup_key": 1501, "queue": 3, "topic": 2}
    assert [message.body for message in await log_of(store, again)] == [b"new"]
    stored_bytes_are_exact(world)


async def test_a_broker_that_does_not_know_yet_appends_nothing(world: World, store: Store, topic: Topic) -> None:
    other = world.broker("b")
    assert await other.find_topic("orders") == topic
    await store.delete_topic(topic)
    (outcome,) = await other.send([sending(topic)])
    assert isinstance(outcome, NotFound)
    (outcome,) = await other.prepare([PrepareWork(new_id(), await other.producer_group_id("shop"), [half(topic)])])
    assert isinstance(outcome, NotFound)
    with pytest.raises(NotFound):
        await other.read_queue(topic, 0, 0, 1, 1)
    assert world.count("message") == 0


async def test_no_client_can_name_what_is_deleted(world: World, store: Store, topic: Topic) -> None:
    await store.delete_topic(topic)
    session: Session = world.session()
    session.begin(write=False)
    (name,) = session.fetch("SELECT name FROM topic")[0]
    session.rollback()
    assert name == f"~{topic.topic_id}"
    assert await store.find_topic(name) is None
