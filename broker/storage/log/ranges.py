"""Messages by their offsets: statements that read them, and parsing of their rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from broker.domain.columns import Column
from broker.domain.message import Candidate
from broker.errors import StoredBodyBroken
from broker.storage.engine.greenlets import pause
from broker.storage.engine.statements import Statement, marks
from broker.storage.tables import columns, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.message import LogMessage

UNPACKED_AT_ONCE = 256 * 1024
"""Bytes of bodies that are unpacked before others on the event loop have a turn."""
SPAN = "FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset < ?"
"""Condition for a queue's messages between two offsets. Range of the primary key."""
_SIZE_OF_HEADERS = "COALESCE(LENGTH(message_keys), 0) + COALESCE(LENGTH(properties), 0)"
_SIZE = f"size + {_SIZE_OF_HEADERS}"
_CANDIDATE_COLUMNS = (
    "log_offset, transaction_id, position, size, tag, message_keys, message_group, properties, born_at, stored_at"
)


def sizes_of(queue_id: int, first: int, count: int) -> Statement:
    """One row: the sum of the sizes of some messages, and how many have a message group. Range of the primary key."""
    return Statement(f"SELECT SUM(size), COUNT(message_group) {SPAN}", (queue_id, first, first + count))


def range_of(queue_id: int, first: int, count: int, largest: int | None = None) -> Statement:
    """The messages at [first, first + count) that are still kept, by offset. Range of the primary key.

    Bodies of more than `largest` bytes are omitted.
    """
    selected = rows.READ_COLUMNS if largest is None else rows.read_columns(f"size <= {largest}")
    return Statement(f"SELECT {selected} {SPAN} ORDER BY log_offset", (queue_id, first, first + count))


def small_in(queue_id: int, first: int, count: int, largest: int) -> Statement:
    """The messages at [first, first + count) that have at most so many bytes, by offset. Range of the primary key."""
    return Statement(
        f"SELECT {rows.READ_COLUMNS} {SPAN} AND {_SIZE} <= {largest} ORDER BY log_offset",
        (queue_id, first, first + count),
    )


def small_concatenated(
    queue_id: int, first: int, count: int, largest: int, concatenation: str, only: frozenset[Column]
) -> Statement:
    """The same messages in one row, the values of each column one behind the other. Range of the primary key.

    A scan of the primary key returns rows by offset; whoever takes the row apart checks that. Bodies that are not
    wanted may have any size.
    """
    size = _SIZE if Column.BODY in only else _SIZE_OF_HEADERS
    return Statement(
        f"SELECT {columns.concatenated(concatenation, only)} {SPAN} AND {size} <= {largest}",
        (queue_id, first, first + count),
    )


def messages_at(queue_id: int, offsets: Sequence[int]) -> Statement:
    """The messages at some ascending offsets that are still kept, by offset. By primary key."""
    return chosen_at(queue_id, offsets, rows.READ_COLUMNS)


def chosen_at(queue_id: int, offsets: Sequence[int], selected: str) -> Statement:
    """Some columns of the messages at some ascending offsets, by offset. By primary key."""
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return Statement(
            f"SELECT {selected} {SPAN} ORDER BY log_offset", (queue_id, offsets[0], offsets[0] + len(offsets))
        )
    return Statement(
        f"SELECT {selected} FROM message WHERE queue_id = ? AND log_offset IN ({marks(offsets)}) ORDER BY log_offset",
        (queue_id, *offsets),
    )


def log_messages(topic: str, queue_no: int, found: Sequence[Sequence[Any]]) -> list[LogMessage]:
    """The messages in the rows of `range_of` and `messages_at`, those included whose body is broken."""
    if sum([row[-2] or 0 for row in found]) <= UNPACKED_AT_ONCE:
        return [rows.log_message(topic, queue_no, row) for row in found]
    messages, unpacked = [], 0
    for row in found:
        messages.append(rows.log_message(topic, queue_no, row))
        unpacked += row[-2] or 0
        if unpacked >= UNPACKED_AT_ONCE:
            pause(0)
            unpacked = 0
    return messages


def whole_ones(messages: list[LogMessage]) -> list[LogMessage]:
    """The messages before the first one whose body is broken.

    Raises:
        StoredBodyBroken: the first one's is.
    """
    for index, message in enumerate(messages):
        if message.broken:
            if not index:
                raise StoredBodyBroken(message.broken)
            return messages[:index]
    return messages


def plain_messages(
    topic: str, queue_no: int, found: Sequence[Sequence[Any]], max_bytes: int
) -> list[LogMessage] | None:
    """The messages in the rows of `range_of`; None if one has a message group, or they are too large together."""
    messages = log_messages(topic, queue_no, found)
    if any(message.body is None or message.message_group is not None for message in messages):
        return None
    return messages if sum([len(message.body) for message in messages]) <= max_bytes else None


def candidates_in(queue_id: int, first: int, count: int) -> Statement:
    """The messages at [first, first + count) without their bodies. Range of the primary key."""
    return Statement(f"SELECT {_CANDIDATE_COLUMNS} {SPAN} ORDER BY log_offset", (queue_id, first, first + count))


def candidates(topic: str, queue_no: int, found: Iterable[Sequence[Any]]) -> list[Candidate]:
    """The rows of `candidates_in`."""
    made = []
    for offset, transaction_id, position, size, own, keys, group, encoded, born_at, stored_at in found:
        properties, tag = rows.decode_properties(encoded, own)
        made.append(
            Candidate(
                topic,
                queue_no,
                offset,
                transaction_id,
                position,
                size,
                tag,
                json.loads(keys) if keys else (),
                properties,
                group,
                born_at,
                stored_at,
            )
        )
    return made
