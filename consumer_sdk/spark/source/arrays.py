"""Arrow arrays of the broker's columns."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfmq.v1.consumer_pb2 import LogColumns

__all__ = [
    "bodies",
    "deliver_at",
    "first_keys",
    "keys",
    "message_ids",
    "numbers",
    "offsets",
    "properties",
    "same",
    "texts",
    "times",
    "transaction_ids",
]

_INT = pa.int32()
_TEXT = pa.string()
_TIME = pa.timestamp("us", tz="UTC")
_ID_BYTES = 16


def same(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """The same value for all messages."""
    return pa.repeat(pa.scalar(value, kind), count)


def offsets(columns: LogColumns) -> pa.Array:
    """Offsets in the queue."""
    if columns.offsets:
        return pa.array(columns.offsets[:], pa.int64())
    return pyarrow.compute.cumulative_sum(same(1, pa.int64(), columns.count), start=columns.first_offset - 1)


def bodies(columns: LogColumns) -> pa.Array:
    """The bodies, without copying."""
    ends = _buffer([0, *columns.body_ends])
    return pa.Array.from_buffers(pa.binary(), columns.count, [None, ends, pa.py_buffer(columns.bodies)])


def times(values: Sequence[int]) -> pa.Array:
    """Times in microseconds."""
    return pa.array(values[:], _TIME)


def deliver_at(columns: LogColumns) -> pa.Array:
    """When messages were to be delivered; nulls: at once."""
    if not columns.deliver_at:
        return pa.nulls(columns.count, _TIME)
    return pa.array([None if each < 0 else each for each in columns.deliver_at], _TIME)


def numbers(values: Sequence[int], count: int) -> pa.Array:
    """Whole numbers; 0 where no message has another one."""
    return pa.array(values[:], _INT) if values else same(0, _INT, count)


def texts(values: Sequence[str], count: int) -> pa.Array:
    """Texts; nulls where there is none."""
    return pa.array([text or None for text in values], _TEXT) if values else pa.nulls(count, _TEXT)


def keys(columns: LogColumns) -> pa.Array:
    """All business keys of each message."""
    starts = _starts(columns.key_counts, columns.count)
    return pa.ListArray.from_arrays(starts, pa.array(columns.keys[:], _TEXT))


def first_keys(columns: LogColumns) -> pa.Array:
    """The first key of each message; nulls where there is none."""
    if not columns.keys:
        return pa.nulls(columns.count, _TEXT)
    found, counts = columns.keys[:], columns.key_counts[:]
    if len(found) == len(counts) and all(counts):
        return pa.array(found, _TEXT)
    starts = accumulate(counts, initial=0)
    return pa.array([found[at] if count else None for at, count in zip(starts, counts, strict=False)], _TEXT)


def properties(columns: LogColumns) -> pa.Array:
    """The headers of each message."""
    starts = _starts(columns.property_counts, columns.count)
    names, values = pa.array(columns.property_names[:], _TEXT), pa.array(columns.property_values[:], _TEXT)
    return pa.MapArray.from_arrays(starts, names, values)


def transaction_ids(columns: LogColumns) -> pa.Array:
    """The texts of transactions' ids."""
    return pa.array(_id_texts(columns), _TEXT)


def message_ids(columns: LogColumns) -> pa.Array:
    """The texts of messages' ids."""
    if not columns.positions:
        return transaction_ids(columns)
    found = zip(_id_texts(columns), columns.positions, strict=True)
    return pa.array([f"{text}.{position}" if position else text for text, position in found], _TEXT)


def _starts(counts: Sequence[int], count: int) -> pa.Array:
    """Where the entries of each message begin among those of all, and where the last ones end."""
    if not counts:
        return same(0, _INT, count + 1)
    return pa.array(list(accumulate(counts, initial=0)), _INT)


def _id_texts(columns: LogColumns) -> Iterable[str]:
    digits = columns.transaction_ids.hex()
    for start, end in pairwise(range(0, len(digits) + 1, 2 * _ID_BYTES)):
        text = digits[start:end]
        yield f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _buffer(ends: Iterable[int]) -> pa.Buffer:
    return pa.py_buffer(array("i", ends))
