"""One answer of the broker: columns, or messages from a broker that does not support columns."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import UUID

from halfmq.v1.consumer_pb2 import LogColumns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from halfmq.v1.consumer_pb2 import ReadQueueResponse
    from halfmq.v1.message_pb2 import LogMessage

__all__ = ["by_columns", "columns_of", "count_before"]


def columns_of(response: ReadQueueResponse) -> LogColumns | None:
    """The messages of an answer by columns; None where there are none."""
    if response.messages:
        return by_columns(response.messages)
    return response.columns if response.columns.count else None


def count_before(columns: LogColumns, end: int) -> int:
    """Number of messages before an offset."""
    if columns.offsets:
        return bisect_left(columns.offsets, end)
    return max(0, min(columns.count, end - columns.first_offset))


def by_columns(messages: Sequence[LogMessage]) -> LogColumns:
    """Columns of messages of one queue, from an older broker or leased; there is at least one message."""
    ids = [message.message_id.partition(".") for message in messages]
    return LogColumns(
        topic=messages[0].topic,
        queue=messages[0].queue,
        count=len(messages),
        first_offset=messages[0].offset,
        offsets=[message.offset for message in messages],
        bodies=b"".join([message.body for message in messages]),
        body_ends=accumulate([len(message.body) for message in messages]),
        transaction_ids=b"".join([UUID(message.transaction_id).bytes for message in messages]),
        positions=[int(number or 0) for _, _, number in ids],
        born_at=[_micros(message.born_at) for message in messages],
        stored_at=[_micros(message.stored_at) for message in messages],
        tags=[message.tag for message in messages],
        key_counts=[len(message.keys) for message in messages],
        keys=[key for message in messages for key in message.keys],
        property_counts=[len(message.properties) for message in messages],
        property_names=[name for message in messages for name in message.properties],
        property_values=[text for message in messages for text in message.properties.values()],
        message_groups=[message.message_group for message in messages],
        priorities=[message.priority for message in messages],
        deliver_at=[_micros(message.deliver_at) if message.HasField("deliver_at") else -1 for message in messages],
        dedup_keys=[message.dedup_key for message in messages],
    )


def _micros(time: Timestamp) -> int:
    return time.seconds * 1_000_000 + time.nanos // 1000
