"""Columns of messages, read back one message at a time."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING
from uuid import UUID

from halfmq.v1.message_pb2 import LogMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from halfmq.v1.consumer_pb2 import LogColumns


def messages_in(columns: LogColumns) -> list[LogMessage]:
    """The messages, as ReadQueue tells them without columns."""
    for field, values in columns.ListFields():
        if field.is_repeated and field.name not in {"body_ends", "keys", "property_names", "property_values"}:
            assert len(values) == columns.count, field.name
    ends = [0, *columns.body_ends]
    keys = _shares(columns.keys, columns.key_counts, columns.count)
    names = _shares(columns.property_names, columns.property_counts, columns.count)
    texts = _shares(columns.property_values, columns.property_counts, columns.count)
    found = []
    for at in range(columns.count):
        own_id = str(UUID(bytes=columns.transaction_ids[16 * at : 16 * at + 16]))
        position = columns.positions[at] if columns.positions else 0
        message = LogMessage(
            topic=columns.topic,
            queue=columns.queue,
            offset=columns.offsets[at] if columns.offsets else columns.first_offset + at,
            body=columns.bodies[ends[at] : ends[at + 1]],
            tag=columns.tags[at] if columns.tags else "",
            keys=keys[at],
            properties=dict(zip(names[at], texts[at], strict=True)),
            message_group=columns.message_groups[at] if columns.message_groups else "",
            message_id=f"{own_id}.{position}" if position else own_id,
            transaction_id=own_id,
            priority=columns.priorities[at] if columns.priorities else 0,
            dedup_key=columns.dedup_keys[at] if columns.dedup_keys else "",
        )
        _fill(message.born_at, columns.born_at[at])
        _fill(message.stored_at, columns.stored_at[at])
        if columns.deliver_at and columns.deliver_at[at] >= 0:
            _fill(message.deliver_at, columns.deliver_at[at])
            message.deliver_at.SetInParent()
        found.append(message)
    return found


def _shares(values: Sequence[str], counts: Sequence[int], count: int) -> list[list[str]]:
    starts = accumulate(counts or [0] * count, initial=0)
    return [list(values[start:end]) for start, end in pairwise(starts)]


def _fill(time: Timestamp, micros: int) -> None:
    time.FromMicroseconds(micros)
