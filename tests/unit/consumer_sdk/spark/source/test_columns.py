"""Arrow batches of what a broker answers: by columns, whole or sparse, and by messages where it is older."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from consumer_sdk.spark.source.columns import COLUMNS, Projection, default_schema
from consumer_sdk.spark.source.slices import columns_of, count_before
from halfmq.v1.consumer_pb2 import LogColumns, ReadQueueResponse
from halfmq.v1.message_pb2 import LogMessage
from support.columns import messages_in

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BORN, STORED = 1_800_000_000_000_001, 1_800_000_001_999_999
ALL = StructType()
for _name, _column in COLUMNS.items():
    ALL.add(_name, _column.type)

_FULL: dict[str, Any] = {
    "tag": "paid",
    "keys": ["o-1", "ö-2"],
    "properties": {"a": "1", "ä": ""},
    "message_group": "anna",
    "priority": 3,
    "dedup_key": "d",
}


def message(offset: int, body: bytes = b"body", position: int = 0, deliver_at: int = -1, **rest: Any) -> LogMessage:
    own_id = f"018f2a6e-7b1c-7cc3-9b7e-{offset:012x}"
    made = LogMessage(
        topic="orders",
        queue=2,
        offset=offset,
        body=body,
        transaction_id=own_id,
        message_id=f"{own_id}.{position}" if position else own_id,
        **rest,
    )
    made.born_at.FromMicroseconds(BORN + offset)
    made.stored_at.FromMicroseconds(STORED + offset)
    if deliver_at >= 0:
        made.deliver_at.FromMicroseconds(deliver_at)
        made.deliver_at.SetInParent()
    return made


def row(message: LogMessage) -> dict[str, Any]:
    """What Spark is to see of a message."""
    wait = message.deliver_at.ToMicroseconds() if message.HasField("deliver_at") else None
    return {
        "topic": "orders",
        "queue": 2,
        "offset": message.offset,
        "key": message.keys[0] if message.keys else None,
        "value": message.body,
        "tag": message.tag or None,
        "timestamp": EPOCH + timedelta(microseconds=message.stored_at.ToMicroseconds()),
        "properties": sorted(message.properties.items()),
        "keys": list(message.keys),
        "message_group": message.message_group or None,
        "message_id": message.message_id,
        "transaction_id": message.transaction_id,
        "born_at": EPOCH + timedelta(microseconds=message.born_at.ToMicroseconds()),
        "priority": message.priority,
        "deliver_at": None if wait is None else EPOCH + timedelta(microseconds=wait),
        "dedup_key": message.dedup_key or None,
    }


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{**each, "properties": sorted(each["properties"])} for each in batch.to_pylist()]


def sparse(columns: LogColumns) -> LogColumns:
    """The same, without the columns in which nothing is, as a broker sends them."""
    result = LogColumns()
    result.CopyFrom(columns)
    for field, values in columns.ListFields():
        nothing = {-1} if field.name == "deliver_at" else {0, ""}
        if field.is_repeated and set(values) <= nothing:
            result.ClearField(field.name)  # type: ignore[arg-type]
    if list(columns.offsets) == list(range(columns.first_offset, columns.first_offset + columns.count)):
        result.ClearField("offsets")
    return result


MIXES = {
    "plain": [message(offset) for offset in range(5, 9)],
    "gaps": [message(offset, b"x" * (offset % 7)) for offset in (0, 3, 4, 1000, 1 << 40)],
    "full": [message(offset, deliver_at=offset, **_FULL) for offset in range(3)],
    "mixed": [message(0), message(1, position=7, deliver_at=0, **_FULL), message(2, b"\x00\xff" * 100_000), message(4)],
    "many keys": [message(0, keys=[f"k{number}" for number in range(200)]), message(1), message(2, keys=["", "k"])],
    "one key each": [message(offset, keys=[f"k{offset}"]) for offset in range(3)],
    "as many keys as messages": [message(0, keys=["a", "b"]), message(1)],
}


@pytest.mark.parametrize("messages", MIXES.values(), ids=MIXES)
def test_columns_hold_what_messages_hold(messages: Sequence[LogMessage]) -> None:
    whole = columns_of(ReadQueueResponse(messages=messages))
    assert whole is not None
    few = columns_of(ReadQueueResponse(columns=sparse(whole)))
    assert few is not None
    expected = [row(each) for each in messages]
    projection = Projection(ALL)
    for columns in (whole, few):
        assert messages_in(columns) == messages
        batch = projection.batch([(columns, columns.count)])
        batch.validate(full=True)
        assert rows(batch) == expected


def test_parts_become_one_batch_that_ends_where_the_range_does() -> None:
    parts = [columns_of(ReadQueueResponse(messages=MIXES[name])) for name in ("mixed", "plain", "gaps")]
    counted = [(part, count) for part, count in zip(parts, (4, 4, 2), strict=True) if part is not None]
    batch = Projection(ALL).batch(counted)
    batch.validate(full=True)
    assert rows(batch) == [row(each) for each in [*MIXES["mixed"], *MIXES["plain"], *MIXES["gaps"][:2]]]
    few = Projection(StructType().add("offset", COLUMNS["offset"].type).add("value", COLUMNS["value"].type)).batch(
        counted[2:]
    )
    assert few.to_pylist() == [{"offset": 0, "value": b""}, {"offset": 3, "value": b"xxx"}]
    assert Projection(default_schema()).batch(counted).schema.names == default_schema().names


@pytest.mark.parametrize(
    ("name", "end", "count"),
    [
        ("plain", 7, 2),
        ("plain", 99, 4),
        ("plain", 5, 0),
        ("plain", 1, 0),
        ("gaps", 4, 2),
        ("gaps", 5, 3),
        ("gaps", 0, 0),
    ],
)
def test_how_many_lie_before_an_end(name: str, end: int, count: int) -> None:
    whole = columns_of(ReadQueueResponse(messages=MIXES[name]))
    assert whole is not None
    assert (count_before(whole, end), count_before(sparse(whole), end)) == (count, count)


def test_an_answer_without_messages() -> None:
    assert columns_of(ReadQueueResponse(next_offset=7)) is None
