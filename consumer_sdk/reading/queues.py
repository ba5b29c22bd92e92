"""Reading queues by offset, without a group and without leases; and the offsets of queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_core.arguments import check_count
from client_core.filters import filter_to_wire
from client_core.stored import StoredMessage
from client_core.times import as_timestamp, read_span
from consumer_sdk.reading.gaps import NO_GAPS, Gaps, OffsetGap
from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from client_core.connection import Broker, BrokerLink
    from client_core.filters import MessageFilter

__all__ = [
    "QueueMeasure",
    "QueueOffset",
    "QueueSlice",
    "commit_offsets",
    "measure_queue",
    "queue_offsets",
    "read_queue",
]

_MEASURED_AT_ONCE = 100_000
"""Messages that a broker measures in one call."""


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """Some consecutive messages of a queue.

    Attributes:
        messages: The messages, in the order of their offsets.
        next_offset: Offset to continue from.
        min_offset: First offset that is kept; above the one asked for, messages were removed by retention.
        max_offset: Offset that the next message released to the queue will get.
    """

    messages: tuple[StoredMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """Size of a part of a queue.

    Attributes:
        end_offset: Where the part ends: its last message is the one before.
        bytes: Bytes of the bodies in it; messages deleted by retention do not count.
    """

    end_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """First and last offset of a queue, and a group's progress.

    Attributes:
        queue: Number of the queue within the topic.
        min_offset: First offset that is kept.
        max_offset: Offset that the next message released will get.
        committed_offset: All messages below it are handled by the group; 0 when no group was named.
        lag: Messages that the group has not handled yet; 0 when no group was named.
        lag_time: How long ago the first message that the group has not handled became visible; None when there is
            none, and when no group was named.
        offset_at_time: Offset of the first message that became visible at the time asked for, or later; None when
            no time was named.
        topic_id: Identity of the topic; store it with offsets. Empty from a broker that does not support it.
        gaps: Gaps in the offsets, left by restores of the broker's database.
    """

    queue: int
    min_offset: int
    max_offset: int
    committed_offset: int
    lag: int
    lag_time: timedelta | None = None
    offset_at_time: int | None = None
    topic_id: str = ""
    gaps: Gaps = NO_GAPS

    def count(self, start: int, end: int) -> int:
        """How many messages have offsets in [start, end), if retention has deleted none of them."""
        return self.gaps.count(start, end)


async def read_queue(
    link: BrokerLink,
    topic: str,
    queue: int,
    offset: int,
    max_messages: int,
    wait: float | None,
    wanted: MessageFilter | None,
    topic_id: str | None = None,
) -> QueueSlice:
    """Reads a queue through a link; see AsyncQueueReader.read_queue."""
    request = pb.ReadQueueRequest(
        topic=topic, queue=queue, offset=offset, max_messages=max_messages, topic_id=topic_id or ""
    )
    if wanted is not None:
        request.filter.CopyFrom(filter_to_wire("filter", wanted))
    if wait:
        request.wait.FromNanoseconds(round(wait * 1e9))

    async def read(broker: Broker, timeout: float) -> QueueSlice:  # noqa: ASYNC109 - gRPC's own
        messages: list[StoredMessage] = []
        last = pb.ReadQueueResponse(next_offset=offset)
        async for last in broker.consumer.ReadQueue(request, timeout=timeout):
            messages.extend(StoredMessage(message) for message in last.messages)
        return QueueSlice(tuple(messages), last.next_offset, last.min_offset, last.max_offset)

    return await link.attempt(read, wait or 0.0)


async def queue_offsets(link: BrokerLink, topic: str, group: str | None, time: datetime | None) -> list[QueueOffset]:
    """Requests offsets through a link; see AsyncQueueReader.queue_offsets."""
    request = pb.QueueOffsetsRequest(topic=topic, consumer_group=group or "")
    if time is not None:
        request.time.CopyFrom(as_timestamp("time", time))
    response = await link.call(lambda broker: broker.consumer.QueueOffsets, request)
    return [
        QueueOffset(
            entry.queue,
            entry.min_offset,
            entry.max_offset,
            entry.committed_offset,
            entry.lag,
            read_span(entry.lag_time) if entry.HasField("lag_time") else None,
            None if time is None else entry.offset_at_time,
            response.topic_id,
            Gaps(tuple(OffsetGap(gap.first_offset, gap.end_offset) for gap in entry.gaps)) if entry.gaps else NO_GAPS,
        )
        for entry in response.queues
    ]


async def measure_queue(
    link: BrokerLink,
    topic: str,
    queue: int,
    offset: int,
    end_offset: int | None,
    max_bytes: int | None,
    topic_id: str | None,
) -> QueueMeasure:
    """Measures a part of a queue through a link; see AsyncQueueReader.measure_queue."""
    if max_bytes is not None:
        check_count("max_bytes", max_bytes)
    at, size = offset, 0
    # An end of 0 would mean the queue's end.
    while end_offset is None or at < end_offset:
        request = pb.MeasureQueueRequest(
            topic=topic,
            queue=queue,
            offset=at,
            end_offset=end_offset or 0,
            max_bytes=0 if max_bytes is None else max_bytes - size,
            topic_id=topic_id or "",
        )
        found = await link.call(lambda broker: broker.consumer.MeasureQueue, request)
        # The first message is always included, a later one only if it fits.
        if size and max_bytes is not None and size + found.bytes > max_bytes:
            break
        whole = found.end_offset - at >= _MEASURED_AT_ONCE
        at, size = found.end_offset, size + found.bytes
        if not whole or size == max_bytes:
            break
    return QueueMeasure(at, size)


async def commit_offsets(
    link: BrokerLink, topic: str, group: str, offsets: Mapping[int, int], topic_id: str | None = None
) -> None:
    """Records a group's progress through a link; see AsyncQueueReader.commit_offsets."""
    request = pb.CommitOffsetsRequest(consumer_group=group, topic=topic, topic_id=topic_id or "")
    for queue, offset in sorted(offsets.items()):
        request.queues.add(queue=queue, offset=offset)
    await link.call(lambda broker: broker.consumer.CommitOffsets, request)
