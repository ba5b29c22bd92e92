"""Compressed topics: shorter rows, the same messages, whichever way they come and go."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import EARLIEST, GroupSettings
from broker.domain.message import Message
from broker.domain.topic import DAY, Compression, TopicChange, TopicSettings
from broker.errors import AlreadyExists
from broker.ports.delivery import JoinWork
from broker.ports.epochs import Epoch, EpochWrites, SinkWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.log import Duplicate, QueueMeasure, SendWork
from broker.ports.queries import MessageSearch
from broker.ports.transactions import Half, PrepareWork
from broker.storage.log.fitting import LARGE_AT_ONCE
from broker.storage.tables.bodies import SMALLEST
from conformance.submitting import committed as submitted
from conformance.submitting import service_on
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
    START,
    World,
    acks,
    commit,
    decided,
    everywhere,
    log_of,
    nacks,
    new_id,
    of,
    ok,
    pull,
    stored_bytes_are_exact,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

ZSTD = TopicSettings(1, HOUR, compression=Compression.ZSTD)
PLAIN = TopicSettings(1, HOUR)


def order(number: int = 7, lines: int = 8) -> bytes:
    """A body that gets much shorter."""
    items = [{"product_id": f"{number:03}-{line:04}", "quantity": 1, "currency": "EUR"} for line in range(lines)]
    return json.dumps({"order_id": f"{number:06}", "items": items}).encode()


NOISE = os.urandom(4096)
"""A body that does not get shorter."""
CONTENTS = [order(), b"", b"x", b"y" * (SMALLEST - 1), b"z" * SMALLEST, NOISE, order(8, 3000), NOISE[:200]]


def message(topic: Topic, body: bytes, **rest: Any) -> Message:
    return Message(topic.name, body, **rest)


def sending(topic: Topic, body: bytes, own: bytes | None = None, **rest: Any) -> SendWork:
    return SendWork(own or new_id(), topic.topic_id, 0, message(topic, body, **rest))


async def prepare(store: Store, *bodies: tuple[Topic, bytes], own: bytes | None = None, **rest: Any) -> bytes:
    """A transaction with these half messages."""
    own = own or new_id()
    halves = [Half(topic.topic_id, None, message(topic, body, **rest)) for topic, body in bodies]
    ok(await store.prepare([PrepareWork(own, await store.producer_group_id("shop"), halves)]))
    return own


def stored(world: World, table: str = "message") -> list[tuple[int, int]]:
    """Bytes in the table, and of the body, of each row by its place."""
    place = {"message": "queue_id, log_offset", "half_message": "transaction_id, position"}.get(table, "deliver_at")
    session = world.session()
    session.begin(write=False)
    found = session.fetch(f"SELECT LENGTH(body), size FROM {table} ORDER BY {place}")
    session.rollback()
    return [(int(length), int(size)) for length, size in found]


def is_packed(world: World, table: str = "message") -> list[bool]:
    """Whether the body of each row is stored in another form; if so it is a shorter one."""
    rows = stored(world, table)
    assert all(length <= size for length, size in rows)
    return [length != size for length, size in rows]


async def by_columns(store: Store, topic: Topic, offset: int = 0, max_bytes: int = 1 << 30) -> list[bytes]:
    found = (await store.read_columns(topic, 0, offset, 100_000, max_bytes)).messages
    ends = [sum(found.sizes[: count + 1]) for count in range(len(found))]
    return [found.bodies[end - size : end] for end, size in zip(ends, found.sizes, strict=True)]


async def joined(store: Store, *topics: Topic, attempts: int = 3, name: str = "billing") -> ConsumerGroup:
    group = await store.create_group(name, GroupSettings(attempts, start_at=EARLIEST), TopicSettings(1, 10 * HOUR))
    await store.join(JoinWork(group, topics, "consumer", {}))
    return group


@pytest.fixture
async def packed(store: Store) -> Topic:
    return await store.create_topic("packed", ZSTD)


# --- the setting


async def test_the_setting_is_kept_and_changed(world: World, store: Store) -> None:
    made = await store.create_topic("packed", ZSTD)
    assert (made.compression, made.settings) == (Compression.ZSTD, ZSTD)
    assert await world.broker("b").find_topic("packed") == made
    changed = await store.update_topic(made, TopicChange(retention=DAY))
    assert changed.compression is Compression.ZSTD, "what is not named stays"
    changed = await store.update_topic(made, TopicChange(compression=Compression.NONE))
    assert (await world.broker("c").find_topic("packed")) == changed
    assert changed.compression is Compression.NONE
    assert (await store.create_topic("plain", PLAIN)).compression is Compression.NONE


# --- all ways in and out


async def test_messages_are_read_as_they_were_sent(world: World, store: Store, packed: Topic) -> None:
    ok(await store.send([sending(packed, body) for body in CONTENTS]))
    assert is_packed(world) == [True, False, False, False, True, False, True, False]
    assert [size for _, size in stored(world)] == [len(body) for body in CONTENTS]
    stored_bytes_are_exact(world)
    assert [(each.body, each.size) for each in await log_of(store, packed)] == [(b, len(b)) for b in CONTENTS]
    assert await by_columns(store, packed) == CONTENTS
    group = await joined(store, packed)
    held = await pull(store, group, packed, max_bytes=1 << 30)
    assert [each.body for part in held for each in part.messages] == CONTENTS


@pytest.mark.parametrize("count", [1, 3, 40])
async def test_sends_one_by_one_and_together(world: World, store: Store, packed: Topic, count: int) -> None:
    contents = [order(number) for number in range(2 * count)]
    for body in contents[:count]:
        ok(await store.send([sending(packed, body)]))
    ok(await store.send([sending(packed, body) for body in contents[count:]]))
    assert is_packed(world) == [True] * 2 * count
    assert [each.body for each in await log_of(store, packed)] == contents


async def test_half_messages_are_copied_as_they_are_stored(world: World, store: Store, packed: Topic) -> None:
    own = await prepare(store, *((packed, body) for body in CONTENTS))
    before = stored(world, "half_message")
    detail = await store.transaction(own)
    assert detail is not None
    assert [half.body for half in detail.halves] == CONTENTS
    found = await store.find_message(own, 6)
    assert found is not None
    assert found.waiting is not None
    assert found.waiting.body == CONTENTS[6]
    await decided(store, commit(own))
    assert stored(world) == before
    assert is_packed(world).count(True) == 3
    assert [each.body for each in await log_of(store, packed)] == CONTENTS
    stored_bytes_are_exact(world)


async def test_a_check_has_the_body(world: World, store: Store, packed: Topic) -> None:
    own = await prepare(store, (packed, order()), (packed, NOISE))
    world.clock.pass_time(POLICY.interval)
    (check,) = await store.claim_checks([await store.producer_group_id("shop")], POLICY, 10)
    assert (check.transaction_id, [half.body for half in check.halves]) == (own, [order(), NOISE])
    await decided(store, commit(own))
    assert [each.body for each in await log_of(store, packed)] == [order(), NOISE]


async def test_delayed_messages(world: World, store: Store, packed: Topic) -> None:
    work = sending(packed, order(1), deliver_at=START + HOUR)
    ok(await store.send([work]))
    own = await prepare(store, (packed, order(2)), deliver_at=START + HOUR + 1)
    await decided(store, commit(own))
    assert is_packed(world, "scheduled_message") == [True, True]
    for transaction_id, body in ((work.message_id, order(1)), (own, order(2))):
        found = await store.find_message(transaction_id, 0)
        assert found is not None
        assert found.waiting is not None
        assert found.waiting.body == body
    world.clock.pass_time(HOUR + 1)
    assert (await store.move_due()).count == 2
    assert is_packed(world) == [True, True]
    assert sorted(each.body for each in await log_of(store, packed)) == [order(1), order(2)]
    stored_bytes_are_exact(world)


async def test_each_topic_of_a_transaction_has_its_own_setting(world: World, store: Store, packed: Topic) -> None:
    plain = await store.create_topic("plain", PLAIN)
    own = await prepare(store, (packed, order(1)), (plain, order(2)), (packed, order(3)))
    assert is_packed(world, "half_message") == [True, False, True]
    await decided(store, commit(own))
    assert [each.body for each in await log_of(store, packed)] == [order(1), order(3)]
    assert [each.body for each in await log_of(store, plain)] == [order(2)]
    ok(await store.send([sending(packed, order(4)), sending(plain, order(5))]))
    assert is_packed(world) == [True, True, True, False, False], "queue by queue"
    stored_bytes_are_exact(world)


async def test_messages_of_epochs(world: World, store: Store, packed: Topic) -> None:
    attempt, sink = new_id(), await store.producer_group_id("%SINK%archive")

    def work(*bodies: bytes) -> PrepareWork:
        halves = [Half(packed.topic_id, None, message(packed, body)) for body in bodies]
        return PrepareWork(new_id(), sink, halves, checked=False)

    assert await store.prepare_epoch(SinkWork(Epoch("archive", "query", 1), attempt, work(order(1), NOISE))) is False
    done = await store.commit_epoch(Epoch("archive", "query", 1), {attempt: 2}, EpochWrites([work(order(2))]))
    assert done.messages == 3
    assert sorted(is_packed(world)) == [False, True, True]
    assert {each.body for each in await log_of(store, packed)} == {order(1), NOISE, order(2)}
    stored_bytes_are_exact(world)


async def test_submissions_are_compressed_when_they_are_released(world: World, store: Store, packed: Topic) -> None:
    submitted(world, order(1).decode(), "short", topic="packed")
    await service_on(store).release()
    assert is_packed(world) == [True, False]
    assert [each.body for each in await log_of(store, packed)] == [order(1), b"short"]


async def test_messages_are_found_by_id_key_and_time(store: Store, packed: Topic) -> None:
    work = [sending(packed, order(number), keys=("k", f"k{number}")) for number in range(3)]
    ok(await store.send(work))
    found = await store.find_message(work[1].message_id, 0)
    assert found is not None
    assert found.message is not None
    assert found.message.body == order(1)
    for search, expected in (
        (MessageSearch(packed, "k"), [0, 1, 2]),
        (MessageSearch(packed, "k2"), [2]),
        (MessageSearch(packed, since=START), [0, 1, 2]),
        # A page's bytes are those of the bodies: two do not fit.
        (MessageSearch(packed, "k", max_bytes=len(order()) * 3 // 2), [0]),
        (MessageSearch(packed, max_bytes=len(order()) * 3 // 2), [0]),
    ):
        page = await store.find_messages(search)
        assert [each.body for each in page.messages] == [order(number) for number in expected]


async def test_filters_know_the_size_of_the_body(store: Store, packed: Topic) -> None:
    ok(await store.send([sending(packed, order(number), tag=f"t{number % 2}") for number in range(6)]))
    wanted = compile_filter(FilterKind.TAG, "t1")
    found = await store.read_queue(packed, 0, 0, 100, 1 << 20, wanted)
    assert [each.body for each in found.messages] == [order(number) for number in (1, 3, 5)]
    columns = await store.read_columns(packed, 0, 0, 100, 1 << 20, wanted)
    assert (columns.messages.bodies, list(columns.messages.sizes)) == (
        b"".join(order(number) for number in (1, 3, 5)),
        [len(order(number)) for number in (1, 3, 5)],
    )


async def test_dead_letters_and_redrive(world: World, store: Store, packed: Topic) -> None:
    group = await joined(store, packed, attempts=1)
    ok(await store.send([sending(packed, body) for body in (order(1), NOISE)]))
    ok(await store.settle(nacks(await pull(store, group, packed), reason="no")))
    page = await store.find_dead_letters(DeadLetterSearch(group))
    assert [each.message.body for each in page.entries] == [order(1), NOISE]
    assert is_packed(world) == [True, False, False, False], "the group's dead letter topic is not a compressed one"
    assert (await store.redrive(DeadLetterSearch(group), republish=False)).redriven == 2
    held = await pull(store, group, packed)
    assert [each.body for part in held for each in part.messages] == [order(1), NOISE]
    # They fail again, and the originals are past retention.
    ok(await store.settle(nacks(held, reason="no")))
    world.clock.pass_time(HOUR)
    await store.trim_queue(packed, packed.queue_ids[0])
    assert await log_of(store, packed) == []
    done = await store.redrive(DeadLetterSearch(group, 2), republish=True)
    assert done.republished == 2
    assert [each.body for each in await log_of(store, packed)] == [order(1), NOISE]
    assert is_packed(world) == [True, False, *[False] * 4]
    stored_bytes_are_exact(world)


async def test_dead_letters_are_compressed_where_their_topic_is(world: World, store: Store, packed: Topic) -> None:
    group = await joined(store, packed, attempts=1)
    letters = await store.find_topic(f"%DLQ%{group.name}")
    assert letters is not None
    await store.update_topic(letters, TopicChange(compression=Compression.ZSTD))
    ok(await store.send([sending(packed, order(1))]))
    ok(await store.settle(nacks(await pull(store, group, packed))))
    assert is_packed(world) == [True, True]
    page = await store.find_dead_letters(DeadLetterSearch(group))
    assert [each.message.body for each in page.entries] == [order(1)]


# --- ids, and the setting in between

OTHERS = [order(8), order()[:-1], order()[:-1] + b"?", b"", NOISE]
CHANGES = [(before, after) for before in Compression for after in Compression]


@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_a_message_that_is_sent_again(store: Store, before: Compression, after: Compression) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR, compression=before))
    work, later = sending(topic, order()), sending(topic, order(), deliver_at=START + HOUR)
    places = await store.send([work, later])
    ok(places)
    topic = await store.update_topic(topic, TopicChange(compression=after))
    assert await store.send([work, later]) == places
    for own in (work.message_id, later.message_id):
        for body in OTHERS:
            (outcome,) = await store.send([sending(topic, body, own)])
            assert of(AlreadyExists, outcome).reason == "MESSAGE_ID_REUSED"
    assert [each.body for each in await log_of(store, topic)] == [order()]


@pytest.mark.parametrize(("before", "after"), CHANGES)
async def test_a_prepare_that_is_repeated(world: World, store: Store, before: Compression, after: Compression) -> None:
    topic = await store.create_topic("orders", TopicSettings(1, HOUR, compression=before))
    own = await prepare(store, (topic, order()), (topic, NOISE))
    rows = stored(world, "half_message")
    topic = await store.update_topic(topic, TopicChange(compression=after))
    await prepare(store, (topic, order()), (topic, NOISE), own=own)
    assert stored(world, "half_message") == rows
    group = await store.producer_group_id("shop")
    for body in OTHERS:
        halves = [Half(topic.topic_id, None, message(topic, each)) for each in (body, NOISE)]
        (outcome,) = await store.prepare([PrepareWork(own, group, halves)])
        assert of(AlreadyExists, outcome).reason == "TRANSACTION_ID_REUSED"
    # More messages for the transaction, under the new setting.
    more = [Half(topic.topic_id, None, message(topic, order(9)))]
    ok(await store.prepare([PrepareWork(own, group, more, first_position=2)]))
    await decided(store, commit(own))
    assert [each.body for each in await log_of(store, topic)] == [order(), NOISE, order(9)]
    assert is_packed(world) == [before is Compression.ZSTD, False, after is Compression.ZSTD]


async def test_duplicates_by_a_business_key(store: Store, packed: Topic) -> None:
    work = sending(packed, order(), dedup_key="order 7")
    ok(await store.send([work]))
    (outcome,) = await store.send([sending(packed, order(), dedup_key="order 7")])
    assert isinstance(outcome, Duplicate)
    assert outcome.transaction_id == work.message_id


async def test_a_changed_setting_is_for_new_messages(world: World, store: Store) -> None:
    """One queue has both forms then, which are read together."""
    topic = await store.create_topic("orders", PLAIN)
    contents = []
    for number, compression in enumerate([Compression.NONE, Compression.ZSTD, Compression.NONE, Compression.ZSTD]):
        topic = await store.update_topic(topic, TopicChange(compression=compression))
        new = [order(10 * number + each) for each in range(3)]
        ok(await store.send([sending(topic, body) for body in new]))
        contents += new
    assert is_packed(world) == [*[False] * 3, *[True] * 3] * 2
    assert [each.body for each in await log_of(store, topic)] == contents
    assert await by_columns(store, topic) == contents
    group = await joined(store, topic)
    held = await pull(store, group, topic)
    assert [each.body for part in held for each in part.messages] == contents
    ok(await store.settle(acks(held)))
    stored_bytes_are_exact(world)


async def test_another_broker_reads_and_decides(world: World, store: Store, packed: Topic) -> None:
    other = world.broker("b")
    own = await prepare(store, (packed, order()))
    await decided(other, commit(own))
    assert [each.body for each in await log_of(other, packed)] == [order()]


# --- sizes


def size_of(bodies: Sequence[bytes]) -> int:
    return sum(map(len, bodies))


async def test_bounds_of_bytes_are_of_the_bodies(store: Store, packed: Topic) -> None:
    contents = [order(number) for number in range(20)]
    ok(await store.send([sending(packed, body) for body in contents]))
    room = size_of(contents[:5]) + 10
    assert [each.body for each in (await store.read_queue(packed, 0, 0, 100, room)).messages] == contents[:5]
    assert await by_columns(store, packed, max_bytes=room) == contents[:5]
    assert await store.measure_queue(packed, 0, 0, None, room) == QueueMeasure(5, size_of(contents[:5]))
    group = await joined(store, packed)
    first = await pull(store, group, packed, max_bytes=room)
    assert [each.body for part in first for each in part.messages] == contents[:5]
    second = await pull(store, group, packed, max_bytes=1)
    assert [each.body for part in second for each in part.messages] == contents[5:6], "one at least"
    ok(await store.settle(nacks([*first, *second], delay=0)))
    again = await pull(store, group, packed, max_bytes=room)
    # Every lease that is begun has one message at least.
    assert [[each.body for each in part.messages] for part in again] == [contents[:5], contents[5:6]]


async def test_large_bodies_between_small_ones(store: Store, packed: Topic) -> None:
    contents = [order(number, 6000 if number % 4 == 3 else 3) for number in range(24)]
    ok(await store.send([sending(packed, body) for body in contents]))
    group = await joined(store, packed)
    room = len(contents[3]) + 1000
    assert room > 300_000
    got: list[bytes] = []
    while held := await pull(store, group, packed, max_bytes=room):
        some = [each.body for part in held for each in part.messages]
        assert size_of(some) <= room
        got += some
        ok(await store.settle(acks(held)))
    assert got == contents
    read: list[bytes] = []
    while some := await by_columns(store, packed, len(read), room):
        assert size_of(some) <= room
        read += some
    assert read == contents


async def test_many_small_ones_are_read_at_once(store: Store, packed: Topic) -> None:
    contents = [order(number % 50, number % 9) for number in range(2 * LARGE_AT_ONCE)]
    for start in range(0, len(contents), 256):
        ok(await store.send([sending(packed, body) for body in contents[start : start + 256]]))
    assert await by_columns(store, packed) == contents
    assert [each.body for each in await log_of(store, packed)] == contents


async def test_a_transaction_is_bounded_by_its_bodies(store: Store, packed: Topic) -> None:
    """As in an uncompressed topic: 30 MiB of bodies, however short they are stored."""
    own = new_id()
    group = await store.producer_group_id("shop")
    body = b"x" * (8 << 20)
    for position in range(3):
        halves = [Half(packed.topic_id, None, message(packed, body))]
        ok(await store.prepare([PrepareWork(own, group, halves, first_position=position)]))
    (outcome,) = await store.prepare(
        [PrepareWork(own, group, [Half(packed.topic_id, None, message(packed, body))], first_position=3)]
    )
    assert isinstance(outcome, Exception)
    assert "30" in str(outcome) or str(30 << 20) in str(outcome)


async def test_retention_by_size_counts_bodies(world: World, store: Store) -> None:
    contents = [order(number) for number in range(10)]
    bound = size_of(contents[:4]) + 1
    topic = await store.create_topic(
        "orders", TopicSettings(1, HOUR, retention_bytes=bound, compression=Compression.ZSTD)
    )
    ok(await store.send([sending(topic, body) for body in contents]))
    while await store.trim_topic(topic):
        stored_bytes_are_exact(world)
    assert [each.body for each in await everywhere(store, topic)] == contents[-4:]


async def test_a_lease_that_expires_brings_the_body_again(world: World, store: Store, packed: Topic) -> None:
    group = await joined(store, packed)
    ok(await store.send([sending(packed, order(number), message_group="anna") for number in range(3)]))
    for attempt in (1, 2):
        (held,) = await pull(store, group, packed)
        assert (held.attempt, [each.body for each in held.messages]) == (attempt, [order(n) for n in range(3)])
        world.clock.pass_time(LEASE)
