"""Reading by columns: the same messages as one by one, whatever they have, on every database."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from broker.api.converters.columns import columns_in, fill_log_columns
from broker.api.converters.messages import fill_log_message
from broker.domain.columns import Column
from broker.domain.filters import FilterKind, compile_filter
from broker.domain.topic import TopicSettings
from broker.errors import InvalidArgument, NotFound
from broker.ports.transactions import PrepareWork
from broker.storage.log.fitting import LARGE_AT_ONCE
from conformance.world import HOUR, START, World, commit, half, new_id, ok, sending
from halfmq.v1.consumer_pb2 import LogColumn, LogColumns
from halfmq.v1.message_pb2 import LogMessage
from support.columns import messages_in

if TYPE_CHECKING:
    from broker.domain.filters import Filter
    from broker.domain.topic import Topic
    from broker.storage.adapters.store import Store

ALWAYS = {"topic", "count", "bodies", "body_ends", "transaction_ids", "born_at", "stored_at"}


async def read(
    store: Store,
    topic: Topic,
    offset: int = 0,
    limit: int = 100,
    max_bytes: int = 1 << 20,
    wanted: Filter | None = None,
    queue_no: int = 0,
) -> LogColumns:
    """What the columns are, which must hold what the messages hold, and lead as far."""
    by_columns = await store.read_columns(topic, queue_no, offset, limit, max_bytes, wanted)
    # Where they do not fit, one of the two may stop earlier.
    limit = len(by_columns.messages) or limit
    one_by_one = await store.read_queue(topic, queue_no, offset, limit, max_bytes, wanted)
    assert (by_columns.min_offset, by_columns.max_offset, by_columns.next_offset) == (
        one_by_one.min_offset,
        one_by_one.max_offset,
        one_by_one.next_offset,
    )
    columns = LogColumns()
    if by_columns.messages:
        fill_log_columns(columns, by_columns.messages)
    expected = [LogMessage() for _ in one_by_one.messages]
    for target, message in zip(expected, one_by_one.messages, strict=True):
        fill_log_message(target, message)
    assert messages_in(columns) == expected
    return columns


def columns_of(found: LogColumns) -> set[str]:
    return {field.name for field, _ in found.ListFields()}


async def test_what_no_message_has_costs_nothing(store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, f"{number}") for number in range(5)]))
    assert columns_of(await read(store, topic)) == ALWAYS


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ({"tag": "paid"}, {"tags"}),
        ({"keys": ("o-1", "ö-2", "")}, {"key_counts", "keys"}),
        ({"properties": {"a": "1", "ä": ""}}, {"property_counts", "property_names", "property_values"}),
        ({"message_group": "anna"}, {"message_groups"}),
        ({"deliver_at": START - 1}, {"deliver_at"}),
        ({"dedup_key": "order 7"}, {"dedup_keys"}),
        (
            {"keys": tuple(f"k{number}" for number in range(100)), "properties": {"a": "1"}, "tag": "t"},
            {"tags", "key_counts", "keys", "property_counts", "property_names", "property_values"},
        ),
    ],
    ids=["tag", "keys", "properties", "group", "deliver_at", "dedup_key", "much"],
)
async def test_what_one_message_has(store: Store, topic: Topic, content: dict[str, object], columns: set[str]) -> None:
    """It stands between messages that have nothing."""
    ok(await store.send([sending(topic, "a"), sending(topic, "b", **content), sending(topic, "c")]))
    assert columns_of(await read(store, topic)) == ALWAYS | columns
    assert columns_of(await read(store, topic, limit=1)) == ALWAYS
    assert columns_of(await read(store, topic, offset=1, limit=1)) == ALWAYS | columns | {"first_offset"}


@pytest.mark.parametrize(
    "content",
    [
        {"tag": "two\nlines"},
        {"message_group": "two\nlines"},
        {"tag": "t" * 300},
        {"keys": ('"', "\\", ",", "\n"), "properties": {'"': "],[", "\\n": "\n"}},
        {"tag": "'", "message_group": "\U0001f600,"},
    ],
    ids=["tag of two lines", "group of two lines", "long tag", "marks of lists", "marks of statements"],
)
async def test_texts_that_look_like_what_stands_between_them(
    store: Store, topic: Topic, content: dict[str, object]
) -> None:
    """Bodies are any bytes, and may be empty."""
    bodies = [b"", b"\n", b",", b"\x00\xff'", b""]
    work = [sending(topic, **(content if body else {})) for body in bodies]
    ok(
        await store.send(
            [replace(each, message=replace(each.message, body=body)) for each, body in zip(work, bodies, strict=True)]
        )
    )
    columns = await read(store, topic)
    assert [message.body for message in messages_in(columns)] == bodies


FIELDS = {
    Column.BODY: {"bodies", "body_ends"},
    Column.TRANSACTION_ID: {"transaction_ids"},
    Column.POSITION: {"positions"},
    Column.BORN_AT: {"born_at"},
    Column.STORED_AT: {"stored_at"},
    Column.TAG: {"tags"},
    Column.KEYS: {"key_counts", "keys"},
    Column.PROPERTIES: {"property_counts", "property_names", "property_values"},
    Column.MESSAGE_GROUP: {"message_groups"},
    Column.PRIORITY: {"priorities"},
    Column.DELIVER_AT: {"deliver_at"},
    Column.DEDUP_KEY: {"dedup_keys"},
}


@pytest.mark.parametrize(
    "only",
    [*[{each} for each in Column], set(Column) - {Column.BODY}, {Column.TAG, Column.KEYS}],
    ids=[*[each.name for each in Column], "no body", "tag and keys"],
)
async def test_columns_that_are_not_wanted_stay_empty(world: World, store: Store, only: set[Column]) -> None:
    topic = await store.create_topic("all", TopicSettings(1, HOUR, priority_levels=2))
    queue_no = len(topic.queue_ids) - 1
    content: dict[str, object] = {"tag": "t" * 300, "keys": ("k",), "message_group": "g", "properties": {"a": "1"}}
    content |= {"priority": 1, "deliver_at": START - 1, "dedup_key": "d"}
    transaction_id, group = new_id(), await store.producer_group_id("shop")
    halves = [half(topic, "first", queue_no, **content), half(topic, "second", queue_no, tag="t", priority=1)]
    ok(await store.prepare([PrepareWork(transaction_id, group, halves)]))
    world.clock.pass_time(7)
    ok(await store.decide([commit(transaction_id)]))
    expected = await read(store, topic, queue_no=queue_no)
    assert columns_of(expected) >= set().union(*FIELDS.values())
    for name in set().union(*(FIELDS[each] for each in set(Column) - only)):
        expected.ClearField(name)
    found = await store.read_columns(topic, queue_no, 0, 10, 1 << 20, None, frozenset(only))
    columns = LogColumns()
    fill_log_columns(columns, found.messages, frozenset(only))
    assert columns == expected


async def test_bodies_that_are_not_wanted_need_no_room(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "x" * 5000, keys=("k",)) for _ in range(300)]))
    for only, most in (({Column.BODY}, 20), (set(Column), 20), ({Column.KEYS}, 300)):
        part = await store.read_columns(topic, 0, 0, 500, 100_000, None, frozenset(only))
        count = min(most, 20) if world.kind == "sqlite" else most
        assert (len(part.messages), part.next_offset) == (count, count), only


def test_columns_of_a_request() -> None:
    assert columns_in([], "only") == frozenset(Column)
    assert columns_in([LogColumn.LOG_COLUMN_KEYS, LogColumn.LOG_COLUMN_KEYS], "only") == {Column.KEYS}
    assert columns_in(LogColumn.values()[1:], "only") == frozenset(Column)
    for unknown in (LogColumn.LOG_COLUMN_UNSPECIFIED, 99):
        with pytest.raises(InvalidArgument, match=f"no column {unknown}") as refused:
            columns_in([LogColumn.LOG_COLUMN_KEYS, unknown], "only")
        assert refused.value.field == "only"


async def test_all_of_it_mixed(world: World, store: Store) -> None:
    topic = await store.create_topic("mixed", TopicSettings(1, HOUR, priority_levels=3))
    rest: dict[str, object] = {"properties": {"halfmq": "no", "x": "y" * 3000}, "tag": "t", "keys": ("k",)}
    queue_no = len(topic.queue_ids) - 1
    for number in range(4):
        times = {"deliver_at": START - number} if number % 2 else {}
        some = {"priority": 2, "dedup_key": f"d{number}", **times, **(rest if number > 1 else {})}
        halves = [
            half(topic, f"{number}.{part}" * (part + 1), queue_no, **(some if not part else {})) for part in range(3)
        ]
        transaction_id, group = new_id(), await store.producer_group_id("shop")
        ok(await store.prepare([PrepareWork(transaction_id, group, halves)]))
        world.clock.pass_time(1_234_567)
        ok(await store.decide([commit(transaction_id)]))
    columns = await read(store, topic, queue_no=queue_no)
    assert columns.count == 12
    assert list(columns.positions) == [0, 1, 2] * 4
    assert columns_of(columns) >= {"priorities", "deliver_at", "dedup_keys", "tags", "keys", "property_names"}
    assert set(columns.property_names) == {"halfmq", "x"}


async def test_what_a_filter_passes_over_leaves_gaps(store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, f"{n}", tag="abc"[n % 3], properties={"n": f"{n}"}) for n in range(30)]))
    columns = await read(store, topic, wanted=compile_filter(FilterKind.TAG, "b"))
    assert list(columns.offsets) == list(range(1, 30, 3))
    columns = await read(store, topic, limit=4, wanted=compile_filter(FilterKind.SQL, "n >= 20"))
    assert (columns.first_offset, columns.count, list(columns.offsets)) == (20, 4, [])
    assert (await read(store, topic, wanted=compile_filter(FilterKind.TAG, "z"))).count == 0


async def test_offsets_that_are_gone(world: World, store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, f"{number}") for number in range(4)]))
    world.clock.pass_time(HOUR)
    ok(await store.send([sending(topic, "late")]))
    assert await store.trim_queue(topic, topic.queue_ids[0]) == 4
    assert (await read(store, topic)).first_offset == 4
    assert (await read(store, topic, offset=5)).count == 0
    assert (await read(store, topic, offset=(1 << 63) - 1)).count == 0
    await world.broker("b").delete_topic(topic)
    with pytest.raises(NotFound):
        await store.read_columns(topic, 0, 0, 10, 1000)


@pytest.mark.parametrize(
    ("sizes", "limit", "max_bytes"),
    [
        ([10] * 9, 4, 1000),
        ([10] * 9, 4, 35),
        ([10] * 6, 4, 5),
        ([10, 10, 990, 10] * 5, 2, 1000),
        ([981, 19, 1] * 5, 3, 1000),
        ([5000, 10], 2, 1000),
        ([1 << 21, 10, 1 << 21], 3, 1 << 20),
        ([1] * 50 + [3000] + [1] * 50, 10, 1000),
    ],
)
async def test_what_fits(store: Store, topic: Topic, sizes: list[int], limit: int, max_bytes: int) -> None:
    """No part is larger than the room, unless it is one message; and every message is in one part."""
    ok(await store.send([sending(topic, "x" * size) for size in sizes]))
    seen: list[int] = []
    while len(seen) < len(sizes):
        part = await store.read_columns(topic, 0, len(seen), limit, max_bytes)
        found = list(part.messages.sizes)
        assert len(part.messages.bodies) == sum(found)
        assert len(found) == 1 or sum(found) <= max_bytes
        assert 0 < len(found) <= limit
        assert part.next_offset == len(seen) + len(found)
        seen += found
    assert seen == sizes


async def test_more_small_messages_come_at_a_time(store: Store, topic: Topic) -> None:
    ok(await store.send([sending(topic, "x", keys=("k",), properties={"a": "1"}) for _ in range(2000)]))
    assert len((await store.read_columns(topic, 0, 0, 1500, 1 << 20)).messages) == 1500
    ok(await store.send([sending(topic, "x", properties={"a": "x" * 2_000}) for _ in range(1500)]))
    # Headers count: what is large with them comes in as small parts as one by one.
    part = await store.read_columns(topic, 0, 1990, 1500, 1 << 20)
    assert (len(part.messages), part.next_offset) == (10, 2000)
    part = await store.read_columns(topic, 0, 2000, 1500, 1 << 20)
    assert (len(part.messages), part.next_offset) == (LARGE_AT_ONCE, 2000 + LARGE_AT_ONCE)
