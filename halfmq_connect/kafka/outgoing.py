"""Messages of halfmq as records of Kafka: docs/ways/kafka.md has the table."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from client_core.message import Message
    from halfmq.v1.consumer_pb2 import LogColumns

__all__ = ["Diverted", "Record", "batch_size", "record_of", "records_of"]

Headers = list[tuple[str, bytes]]

_BATCH_OVERHEAD = 61
_RECORD_OVERHEAD = 3
"""Attributes, and the differences of time and offset, which are 0 for a batch's first record."""
_ID_DIGITS = 32
_OWN = "halfmq."


class Record(NamedTuple):
    """A record, and the offset and id of its message in halfmq; the time is in milliseconds."""

    offset: int
    message_id: str
    key: bytes | None
    value: bytes
    headers: Headers
    timestamp: int


class Diverted(NamedTuple):
    """What a record's headers were in its message, to send it to another topic of halfmq.

    `origin` has what the broker sets anew; it keeps names that begin with "halfmq." to itself.
    """

    tag: str | None
    keys: list[str]
    properties: dict[str, str]
    origin: dict[str, str]

    @classmethod
    def of(cls, record: Record) -> Diverted:
        """Reads the headers."""
        tag, keys, properties, origin = None, [], {}, {}
        for name, content in record.headers:
            value = content.decode()
            if name == "halfmq.tag":
                tag = value
            elif name == "halfmq.key":
                keys.append(value)
            elif name.startswith(_OWN):
                origin[f"origin.{name.removeprefix(_OWN)}"] = value
            else:
                properties[name] = value
        return cls(tag, keys, properties, origin)


def records_of(columns: LogColumns) -> Iterator[Record]:
    """The records of messages read by columns, in order."""
    count = columns.count
    offsets: Sequence[int] = columns.offsets or range(columns.first_offset, columns.first_offset + count)
    bodies, ends = columns.bodies, [0, *columns.body_ends]
    ids = _message_ids(columns)
    stored_at, born_at = columns.stored_at, columns.born_at
    headers = _headers(columns)
    groups, key_counts, keys = list(columns.message_groups), list(columns.key_counts), list(columns.keys)
    at_key = 0
    for index, (offset, message_id, (start, end)) in enumerate(zip(offsets, ids, pairwise(ends), strict=True)):
        key = groups[index].encode() if groups and groups[index] else None
        own = headers[index]
        if key_counts:
            here = keys[at_key : at_key + key_counts[index]]
            at_key += key_counts[index]
            own += [("halfmq.key", each.encode()) for each in here]
            if key is None and here:
                key = here[0].encode()
        own.append(("halfmq.message_id", message_id.encode()))
        own.append(("halfmq.position", b"%s/%d/%d" % (columns.topic.encode(), columns.queue, offset)))
        own.append(("halfmq.born_at", b"%d" % born_at[index]))
        yield Record(offset, message_id, key, bodies[start:end], own, stored_at[index] // 1000)


def _headers(columns: LogColumns) -> list[Headers]:
    """The headers that few messages have, and the properties."""
    headers: list[Headers] = [[] for _ in range(columns.count)]
    texts = (
        ("halfmq.tag", columns.tags),
        ("halfmq.message_group", columns.message_groups),
        ("halfmq.dedup_key", columns.dedup_keys),
    )
    for name, values in texts:
        for own, value in zip(headers, values, strict=False):
            if value:
                own.append((name, value.encode()))
    for own, priority in zip(headers, columns.priorities, strict=False):
        if priority:
            own.append(("halfmq.priority", b"%d" % priority))
    for own, time in zip(headers, columns.deliver_at, strict=False):
        if time >= 0:
            own.append(("halfmq.deliver_at", b"%d" % time))
    if columns.property_counts:
        names, contents = list(columns.property_names), list(columns.property_values)
        at = 0
        for own, count in zip(headers, columns.property_counts, strict=True):
            for index in range(at, at + count):
                own.append((names[index], contents[index].encode()))
            at += count
    return headers


def _message_ids(columns: LogColumns) -> Iterator[str]:
    digits = columns.transaction_ids.hex()
    positions = columns.positions
    for index, start in enumerate(range(0, len(digits), _ID_DIGITS)):
        text = digits[start : start + _ID_DIGITS]
        text = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        yield f"{text}.{positions[index]}" if positions and positions[index] else text


def record_of(message: Message) -> tuple[bytes | None, bytes, Headers]:
    """Key, value and headers of a message that was not sent through halfmq."""
    keys = (message.keys,) if isinstance(message.keys, str) else tuple(message.keys)
    headers: Headers = [(name, value.encode()) for name, value in message.properties.items()]
    texts = (
        ("halfmq.tag", message.tag),
        ("halfmq.message_group", message.message_group),
        ("halfmq.dedup_key", message.dedup_key),
        ("halfmq.message_id", message.message_id),
    )
    headers += [(name, text.encode()) for name, text in texts if text]
    headers += [("halfmq.key", key.encode()) for key in keys]
    key = message.message_group or (keys[0] if keys else None)
    body = message.body.encode() if isinstance(message.body, str) else message.body
    return None if key is None else key.encode(), body, headers


def batch_size(key: bytes | None, value: bytes, headers: Headers) -> int:
    """Bytes of a batch of this record alone, uncompressed: what Kafka compares with max.message.bytes.

    The form is that of message format 2, https://kafka.apache.org/documentation/#recordbatch.
    """
    size = _RECORD_OVERHEAD + _varint(-1 if key is None else len(key)) + len(key or b"")
    size += _varint(len(value)) + len(value) + _varint(len(headers))
    for name, content in headers:
        written, held = len(name.encode()), len(content or b"")
        size += _varint(written) + written + _varint(held) + held
    return _BATCH_OVERHEAD + _varint(size) + size


def _varint(value: int) -> int:
    """Bytes of a number in zigzag form."""
    return max(1, -(-(value << 1 ^ value >> 63).bit_length() // 7))
