"""The log: dense offsets, one effect per id, reading by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.check_policy import SECOND
from broker.domain.message import TRACE_CONTEXT
from broker.domain.topic import QueueState, TopicSettings
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import AlreadyExists, NotFound
from broker.ports.log import SendWork
from conformance.world import (
    HOUR,
    World,
    ack,
    commit,
    decided,
    log_of,
    new_id,
    of,
    ok,
    prepared,
    pull,
    receipts,
    rollback,
    sending,
    text,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


async def test_send_appends_and_tells_the_place(world: World, store: Store, topic: Topic) -> None:
    places = await store.send([sending(topic, f"{n}") for n in range(5)])
    assert places == [(topic.queue_ids[0], n) for n in range(5)]
    messages = await log_of(store, topic)
    assert [(m.offset, m.body, m.position, m.born_at, m.stored_at) for m in messages] == [
        (n, str(n).encode(), 0, world.clock.now(), world.clock.now()) for n in range(5)
    ]


@pytest.mark.parametrize("together", [True, False])
async def test_a_send_again_has_one_effect(store: Store, topic: Topic, together: bool) -> None:
    one, two = sending(topic, "one"), sending(topic, "two")
    batches = [[one, two, one, one]] if together else [[one], [two], [one, two], [one]]
    answers = [place for batch in batches for place in await store.send(batch)]
    assert set(answers) == {(topic.queue_ids[0], 0), (topic.queue_ids[0], 1)}
    assert [message.body for message in await log_of(store, topic)] == [b"one", b"two"]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("delay", [None, 5 * SECOND], ids=["at once", "delayed"])
async def test_a_send_again_in_another_trace_has_one_effect(
    world: World, store: Store, topic: Topic, together: bool, delay: int | None
) -> None:
    """A call has a span of its own, and so the message another context; the first one stays."""
    when = None if delay is None else world.clock.now() + delay
    contexts = [{"traceparent": "first", "tracestate": "a=1"}, {"traceparent": "second"}, {}]
    notes = [{TRACE_CONTEXT: "first"}, None, {TRACE_CONTEXT: "third"}]
    own_id = new_id()
    items = [
        sending(topic, message_id=own_id, deliver_at=when, properties={"x": "1", **context}, notes=note)
        for context, note in zip(contexts, notes, strict=True)
    ]
    batches = [items] if together else [[item] for item in items]
    answers = [place for batch in batches for place in await store.send(batch)]
    ok(answers)
    if delay is not None:
        world.clock.pass_time(delay)
        await store.move_due(known=True)
        ok(await store.send(items))
    assert len(set(map(str, answers))) == 1
    (message,) = await log_of(store, topic)
    assert {name: message.properties[name] for name in contexts[0]} == contexts[0]


CHANGES: dict[str, dict[str, object]] = {
    "body": {"body": "another"},
    "tag": {"tag": "other"},
    "keys": {"keys": ("k2",)},
    "property": {"properties": {"x": "2"}},
    "message group": {"message_group": "b"},
    "priority": {"priority": 1},
    "note": {"notes": {"halfmq.born-host": "elsewhere"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("together", [True, False], ids=["together", "later"])
@pytest.mark.parametrize("delay", [None, 5 * SECOND], ids=["at once", "delayed"])
async def test_an_id_names_one_content(
    world: World, store: Store, topic: Topic, change: dict[str, object], together: bool, delay: int | None
) -> None:
    """Clients may make one id twice; a message must not be dropped for it."""
    own_id = new_id()
    content: dict[str, Any] = {"body": "one", "tag": "t", "keys": ("k1",), "properties": {"x": "1"}}

    def work(**changes: object) -> SendWork:
        when = None if delay is None else world.clock.now() + delay
        return sending(topic, message_id=own_id, **{**content, "deliver_at": when, **changes})

    items = [work(), work(**change)]
    if together:
        first, second = await store.send(items)
    else:
        (first,) = await store.send(items[:1])
        world.clock.pass_time(SECOND)
        (second,) = await store.send(items[1:])
        if delay is not None:
            world.clock.pass_time(delay)
            await store.move_due(known=True)
            assert of(AlreadyExists, (await store.send(items[1:]))[0]).reason == "MESSAGE_ID_REUSED"
            first = (topic.queue_ids[0], 0)
    assert of(AlreadyExists, second).reason == "MESSAGE_ID_REUSED"
    world.clock.pass_time(SECOND)
    # The time of delivery is told as a delay: it is another one each time.
    assert await store.send([work()]) == [first]


@pytest.mark.parametrize("verdict", [None, "commit", "rollback"])
@pytest.mark.parametrize("delay", [None, 5 * SECOND], ids=["at once", "delayed"])
async def test_the_id_of_a_transaction_is_no_ones_else(
    world: World, store: Store, topic: Topic, verdict: str | None, delay: int | None
) -> None:
    """The transaction's messages would be taken for those that were sent, and be lost."""
    transaction = await prepared(store, topic, bodies=["half"])
    if verdict in {"commit", "rollback"}:
        await decided(store, commit(transaction) if verdict == "commit" else rollback(transaction))
    other = sending(topic, "mate")
    when = None if delay is None else world.clock.now() + delay
    outcomes = await store.send([sending(topic, "another", transaction, deliver_at=when), other])
    assert of(AlreadyExists, outcomes[0]).reason == "MESSAGE_ID_REUSED"
    ok(outcomes[1:])
    if verdict is None:
        await decided(store, commit(transaction))
    kept = {None: ["mate", "half"], "commit": ["half", "mate"], "rollback": ["mate"]}[verdict]
    assert [message.body.decode() for message in await log_of(store, topic)] == kept
    assert world.count("scheduled_message") == 0
    assert world.count("half_message") == 0


async def test_an_id_whose_message_is_gone_is_a_repetition(world: World, store: Store, topic: Topic) -> None:
    work = sending(topic, "one")
    (place,) = await store.send([work])
    world.clock.pass_time(2 * HOUR)
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 1
    assert await log_of(store, topic) == []
    assert await store.send([sending(topic, "another", work.message_id)]) == [place]


async def test_a_send_is_recorded_as_a_committed_transaction(store: Store, topic: Topic) -> None:
    work = sending(topic)
    ok(await store.send([work]))
    detail = await store.transaction(work.message_id)
    assert detail is not None
    assert detail.op is not None
    assert (detail.op.state, detail.op.source) == (TransactionState.COMMITTED, VerdictSource.SEND)
    assert list(detail.op.released) == [(topic.queue_ids[0], 0)]


async def test_a_send_to_a_deleted_topic_leaves_its_mates_alone(store: Store, topic: Topic) -> None:
    gone = await store.create_topic("gone", TopicSettings(1, HOUR))
    await store.delete_topic(gone)
    outcomes = await store.send([sending(topic, "a"), sending(gone), sending(topic, "b")])
    assert of(NotFound, outcomes[1]).reason == "TOPIC_NOT_FOUND"
    assert [outcomes[0], outcomes[2]] == [(topic.queue_ids[0], 0), (topic.queue_ids[0], 1)]


async def test_a_send_to_a_topic_another_broker_just_deleted(world: World, store: Store, topic: Topic) -> None:
    """This broker still remembers the topic; the queue's row tells it."""
    other = await store.create_topic("kept", TopicSettings(1, HOUR))
    ok(await store.send([sending(topic)]))
    await world.broker("b").delete_topic(topic)
    outcomes = await store.send([sending(topic), sending(other)])
    assert of(NotFound, outcomes[0]).reason == "TOPIC_NOT_FOUND"
    ok(outcomes[1:])


async def test_batches_without_a_fixed_queue_take_turns(store: Store) -> None:
    topic = await store.create_topic("wide", TopicSettings(3, HOUR))
    used = [{place[0] for place in await store.send([sending(topic, queue_no=None)] * 2)} for _ in range(3)]  # type: ignore[index]
    assert sorted(queue for (queue,) in used) == sorted(topic.queue_ids)


async def test_sends_and_releases_share_the_offsets(store: Store, topic: Topic) -> None:
    for n in range(4):
        ok(await store.send([sending(topic, f"s{n}")]))
        ok(await store.decide([commit(await prepared(store, topic, bodies=[f"t{n}"]))]))
    messages = await log_of(store, topic)
    assert [message.offset for message in messages] == list(range(8))


@pytest.mark.parametrize(
    ("offset", "limit", "max_bytes", "expected"),
    [
        (0, 100, 1000, [0, 1, 2, 3, 4]),
        (2, 100, 1000, [2, 3, 4]),
        (0, 2, 1000, [0, 1]),
        (4, 1, 1000, [4]),
        (5, 10, 1000, []),
        (99, 10, 1000, []),
        (0, 10, 29, [0, 1]),
        (0, 10, 30, [0, 1, 2]),
        (0, 10, 1, [0]),
        (3, 10, 0, [3]),
    ],
)
async def test_reading_a_queue(
    store: Store, topic: Topic, offset: int, limit: int, max_bytes: int, expected: list[int]
) -> None:
    ok(await store.send([sending(topic, "x" * 10) for _ in range(5)]))
    part = await store.read_queue(topic, 0, offset, limit, max_bytes)
    assert [message.offset for message in part.messages] == expected
    assert (part.min_offset, part.max_offset) == (0, 5)


async def test_reading_an_empty_and_a_deleted_queue(world: World, store: Store, topic: Topic) -> None:
    part = await store.read_queue(topic, 0, 0, 10, 1000)
    assert (part.messages, part.min_offset, part.max_offset) == ([], 0, 0)
    await world.broker("b").delete_topic(topic)
    with pytest.raises(NotFound):
        await store.read_queue(topic, 0, 0, 10, 1000)


async def test_large_bodies_and_statements(store: Store, topic: Topic) -> None:
    """More bytes than fit into one packet of the server go in several statements of one transaction."""
    large = "x" * (4 << 20)
    ok(await store.send([sending(topic, large) for _ in range(5)]))
    assert [len(message.body) for message in await log_of(store, topic)] == [4 << 20] * 5


async def test_queue_heads_grow_with_releases_only(store: Store, topic: Topic) -> None:
    transaction_id = await prepared(store, topic)
    assert await store.end_offsets([topic.topic_id]) == {(topic.topic_id, topic.queue_ids[0]): 0}
    ok(await store.decide([commit(transaction_id)]))
    ok(await store.send([sending(topic)]))
    assert await store.end_offsets([topic.topic_id]) == {(topic.topic_id, topic.queue_ids[0]): 2}


async def test_queue_states_with_and_without_a_group(store: Store, topic: Topic, group: ConsumerGroup) -> None:
    ok(await store.send([sending(topic) for _ in range(10)]))
    known = QueueState("orders", 0, 0, 10, stored_bytes=50, topic_identity=topic.identity)
    assert await store.queue_states(topic, None) == [known]
    held = await pull(store, group, topic, limit=4)
    (state,) = await store.queue_states(topic, group)
    assert (state.next_offset, state.committed_offset, state.in_flight, state.lag) == (4, 0, 4, 10)
    ok(await store.settle([ack(receipts(held)[n]) for n in (0, 1, 3)]))
    (state,) = await store.queue_states(topic, group)
    assert (state.next_offset, state.committed_offset, state.in_flight, state.lag) == (4, 2, 1, 7)
    ok(await store.settle([ack(receipts(held)[2])]))
    (state,) = await store.queue_states(topic, group)
    assert (state.next_offset, state.committed_offset, state.in_flight, state.lag) == (4, 4, 0, 6)
    assert await store.group_progress(group) == [state]


async def test_a_message_keeps_its_id_in_the_log(store: Store, topic: Topic) -> None:
    message_id = new_id()
    ok(await store.send([SendWork(message_id, topic.topic_id, 0, text())]))
    assert [(m.transaction_id, m.position) for m in await log_of(store, topic)] == [(message_id, 0)]
