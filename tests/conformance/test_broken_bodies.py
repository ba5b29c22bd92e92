"""A compressed row that is damaged: errors name it, and it stops no other message."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from zstandard import ZstdCompressor

from broker.domain.columns import Column
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import EARLIEST, GroupSettings
from broker.domain.ids import message_id
from broker.domain.message import Message
from broker.domain.topic import Compression, TopicChange, TopicSettings
from broker.domain.transaction import VerdictSource
from broker.errors import StoredBodyBroken
from broker.ports.delivery import JoinWork
from broker.ports.groups import DeadLetterSearch
from broker.ports.log import SendWork
from broker.ports.queries import MessageSearch
from broker.ports.transactions import Half, PrepareWork, TransactionFilter
from conformance.world import (
    HOUR,
    LEASE,
    POLICY,
    World,
    acks,
    bodies,
    commit,
    decided,
    new_id,
    of,
    ok,
    pull,
)

if TYPE_CHECKING:
    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store


def text(number: int) -> str:
    return f"order {number} " * 40


WHOLE = ZstdCompressor().compress(text(2).encode())
DAMAGES = {
    "cut off": WHOLE[:-4],
    "no zstd": b"?" * 50,
    "empty": b"",
    "of another message": ZstdCompressor().compress(text(2).encode() * 2),
    "of gigabytes": ZstdCompressor().compress(b"x" * (1 << 26)),
    "behind its end": WHOLE + b"..",
    "longer than the body": b"x" * 1000,
    "changed inside": WHOLE[:6] + b"\xff\xff\xff\xff" + WHOLE[10:],
}
CUT = DAMAGES["cut off"]


@pytest.fixture
async def topic(store: Store) -> Topic:
    return await store.create_topic("orders", TopicSettings(1, 10 * HOUR, compression=Compression.ZSTD))


@pytest.fixture
async def group(store: Store, topic: Topic) -> ConsumerGroup:
    """A group that gives a message up after two attempts."""
    made = await store.create_group("billing", GroupSettings(2, start_at=EARLIEST), TopicSettings(1, 10 * HOUR))
    await store.join(JoinWork(made, [topic], "consumer", {}))
    return made


async def sent(store: Store, topic: Topic, count: int = 5, **rest: Any) -> list[bytes]:
    """Sends messages; returns their ids."""
    ids = [new_id() for _ in range(count)]
    messages = [Message(topic.name, text(number).encode(), **rest) for number in range(count)]
    ok(await store.send([SendWork(own, topic.topic_id, 0, each) for own, each in zip(ids, messages, strict=True)]))
    return ids


def damage(world: World, stored: bytes = CUT, where: str = "log_offset = 2", table: str = "message") -> None:
    session = world.session()
    session.begin()
    assert session.run(f"UPDATE {table} SET body = ? WHERE {where}", (stored,)) == 1
    session.commit()


async def read(store: Store, topic: Topic, offset: int, *filters: Any, limit: int = 100) -> tuple[list[str], int]:
    """The bodies from an offset on, and where reading goes on; by rows and by columns."""
    rows = await store.read_queue(topic, 0, offset, limit, 1 << 20, *filters)
    columns = await store.read_columns(topic, 0, offset, limit, 1 << 20, *filters)
    assert columns.messages.bodies == b"".join(each.body for each in rows.messages)
    assert columns.next_offset == rows.next_offset
    return [each.body.decode() for each in rows.messages], rows.next_offset


@pytest.mark.parametrize("stored", DAMAGES.values(), ids=list(DAMAGES))
async def test_reading_ends_before_it_and_goes_on_behind_it(
    world: World, store: Store, topic: Topic, stored: bytes
) -> None:
    ids = await sent(store, topic)
    damage(world, stored)
    assert await read(store, topic, 0) == ([text(0), text(1)], 2)
    assert await read(store, topic, 0, compile_filter(FilterKind.TAG, "*")) == ([text(0), text(1)], 2)
    for reading in (store.read_queue, store.read_columns):
        with pytest.raises(StoredBodyBroken, match=f"message {message_id(ids[2], 0)} .*'orders', queue 0, offset 2"):
            await reading(topic, 0, 2, 100, 1 << 20)
    assert await read(store, topic, 3) == ([text(3), text(4)], 5)


async def test_whoever_reads_no_bodies_reads_past_it(world: World, store: Store, topic: Topic) -> None:
    if not world.database().dialect.concatenation:
        pytest.skip("SQLite reads whole rows")
    await sent(store, topic)
    damage(world)
    found = await store.read_columns(topic, 0, 0, 100, 1 << 20, None, frozenset({Column.POSITION}))
    assert list(found.messages.positions) == [0] * 5


async def test_the_rest_is_delivered_and_it_becomes_a_dead_letter(
    world: World, store: Store, topic: Topic, group: ConsumerGroup, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await sent(store, topic)
    damage(world)
    with caplog.at_level(logging.ERROR):
        held = await pull(store, group, topic)
    assert bodies(held) == [text(number) for number in (0, 1, 3, 4)]
    assert message_id(ids[2], 0) in caplog.text
    ok(await store.settle(acks(held)))
    assert world.count("lease") == 1
    world.clock.pass_time(LEASE)
    assert await pull(store, group, topic) == []
    world.clock.pass_time(LEASE)
    assert await pull(store, group, topic) == []
    assert world.count("lease") == 0
    (letter,) = (await store.find_dead_letters(DeadLetterSearch(group))).entries
    assert letter.message.body == CUT, "what is stored, for whoever can make something of it"
    assert letter.origin is not None
    assert (letter.origin.offset, letter.origin.attempts) == (2, 2)
    assert message_id(ids[2], 0) in letter.origin.reason
    # Where its row is restored, a redrive delivers it.
    damage(world, WHOLE, f"log_offset = 2 AND queue_id = {topic.queue_ids[0]}")
    assert (await store.redrive(DeadLetterSearch(group), republish=False)).redriven == 1
    assert bodies(await pull(store, group, topic)) == [text(2)]


@pytest.mark.parametrize("limit", [1, 2])
async def test_one_at_a_time(world: World, store: Store, topic: Topic, group: ConsumerGroup, limit: int) -> None:
    """Claims that are filled by it alone find nothing; the next ones go on behind it."""
    await sent(store, topic)
    damage(world)
    got = []
    for _ in range(8):
        held = await pull(store, group, topic, limit=limit)
        got += bodies(held)
        ok(await store.settle(acks(held)))
    assert got == [text(number) for number in (0, 1, 3, 4)]


async def test_in_a_message_group_the_ones_behind_it_wait(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    await sent(store, topic, message_group="anna")
    damage(world)
    held = await pull(store, group, topic)
    assert bodies(held) == [text(0), text(1)]
    ok(await store.settle(acks(held)))
    for _ in range(2):
        assert await pull(store, group, topic) == []
        world.clock.pass_time(LEASE)
    held = await pull(store, group, topic)
    assert bodies(held) == [text(3), text(4)]
    (letter,) = (await store.find_dead_letters(DeadLetterSearch(group))).entries
    assert letter.message.offset == 0


async def test_with_a_filter(world: World, store: Store, topic: Topic) -> None:
    made = await store.create_group("paid", GroupSettings(2, start_at=EARLIEST), TopicSettings(1, HOUR))
    await store.join(JoinWork(made, [topic], "consumer", {topic.topic_id: compile_filter(FilterKind.TAG, "paid")}))
    await sent(store, topic, tag="paid")
    damage(world)
    got: list[str] = []
    for _ in range(4):
        got += bodies(await pull(store, made, topic))
    assert got == [text(number) for number in (0, 1, 3, 4)]


async def test_look_ups_name_it(world: World, store: Store, topic: Topic) -> None:
    ids = await sent(store, topic, keys=("k",))
    damage(world)
    with pytest.raises(StoredBodyBroken, match=message_id(ids[2], 0)):
        await store.find_message(ids[2], 0)
    for search in (MessageSearch(topic, "k"), MessageSearch(topic)):
        page = await store.find_messages(search)
        assert ([each.offset for each in page.messages], page.following) == ([0, 1], (0, 2))
    with pytest.raises(StoredBodyBroken):
        await store.find_messages(MessageSearch(topic, after=(0, 2)))
    assert [each.offset for each in (await store.find_messages(MessageSearch(topic, after=(0, 3)))).messages] == [3, 4]
    # Its content is not known any more: a repetition is taken for one.
    work = SendWork(ids[2], topic.topic_id, 0, Message("orders", text(2).encode(), keys=("k",)))
    assert await store.send([work]) == [(topic.queue_ids[0], 2)]


async def test_a_half_message(world: World, store: Store, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    shop = await store.producer_group_id("shop")
    broken, whole = new_id(), new_id()
    halves = [Half(topic.topic_id, None, Message("orders", text(number).encode())) for number in range(2)]
    ok(await store.prepare([PrepareWork(own, shop, halves) for own in (broken, whole)]))
    session = world.session()
    session.begin()
    changed = session.run("UPDATE half_message SET body = ? WHERE transaction_id = ? AND position = 1", (CUT, broken))
    session.commit()
    assert changed == 1
    with pytest.raises(StoredBodyBroken, match=message_id(broken, 1)):
        await store.transaction(broken)
    outcomes = await store.prepare([PrepareWork(own, shop, halves) for own in (broken, whole)])
    of(StoredBodyBroken, outcomes[0])
    ok(outcomes[1:])
    # Its checks are counted and not sent, so that it is parked.
    for _ in range(POLICY.max_checks):
        world.clock.pass_time(POLICY.interval)
        with caplog.at_level(logging.ERROR):
            assert [each.transaction_id for each in await store.claim_checks([shop], POLICY, 10)] == [whole]
        assert message_id(broken, 1) in caplog.text
        caplog.clear()
    world.clock.pass_time(POLICY.interval)
    await store.park_exhausted(10)
    listed = (await store.list_transactions(TransactionFilter())).entries
    assert {each.transaction_id: each.check_count for each in listed} == {broken: 3, whole: 3}
    # An operator can decide it; what is released is as damaged as it was.
    await decided(store, commit(broken, VerdictSource.OPERATOR, reason="it is known"))
    assert await read(store, topic, 0) == ([text(0)], 1)
    await decided(store, commit(whole, VerdictSource.OPERATOR, reason="it is known"))
    assert await read(store, topic, 2) == ([text(0), text(1)], 4)


async def test_a_broken_dead_letter_is_not_republished(
    world: World, store: Store, topic: Topic, group: ConsumerGroup
) -> None:
    letters = await store.find_topic("%DLQ%billing")
    assert letters is not None
    await store.update_topic(letters, TopicChange(compression=Compression.ZSTD))
    await sent(store, topic, 3)
    for _ in range(2):
        await pull(store, group, topic)
        world.clock.pass_time(LEASE)
    await pull(store, group, topic)
    damage(world, CUT, f"log_offset = 1 AND queue_id = {letters.queue_ids[0]}")
    page = await store.find_dead_letters(DeadLetterSearch(group))
    assert ([each.message.offset for each in page.entries], page.following) == ([0], 1)
    with pytest.raises(StoredBodyBroken):
        await store.find_dead_letters(DeadLetterSearch(group, 1))
    world.clock.pass_time(8 * HOUR)
    session = world.session()
    session.begin()
    session.run("DELETE FROM message WHERE queue_id = ?", (topic.queue_ids[0],))
    session.commit()
    done = await store.redrive(DeadLetterSearch(group), republish=True)
    assert (done.republished, done.left) == (2, 1)
