"""Reading queues by offset, without a group and without leases; and where queues begin and end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from client_core.arguments import check_count
from client_core.connection import BackgroundRunner, BrokerLink
from client_core.filters import filter_to_wire
from client_core.stored import StoredMessage
from client_core.times import as_timestamp, read_span
from halfmq.v1 import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta
    from types import TracebackType

    from client_core.connection import Broker, Endpoint, RetryConfig, TlsConfig
    from client_core.filters import MessageFilter

__all__ = [
    "AsyncQueueReader",
    "QueueMeasure",
    "QueueOffset",
    "QueueReader",
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
        next_offset: Offset to go on from.
        min_offset: First offset that is kept; above the one asked for, messages were removed by retention.
        max_offset: Offset that the next message released to the queue will get.
    """

    messages: tuple[StoredMessage, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueMeasure:
    """How large a part of a queue is.

    Attributes:
        end_offset: Where the part ends: its last message is the one before.
        bytes: Bytes of the bodies in it; what retention took has none.
    """

    end_offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """Where a queue begins and ends, and how far a group has come.

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
        topic_id: Tells the topic from others of its name; keep it with offsets that you keep. Empty from a broker
            that does not tell it yet.
    """

    queue: int
    min_offset: int
    max_offset: int
    committed_offset: int
    lag: int
    lag_time: timedelta | None = None
    offset_at_time: int | None = None
    topic_id: str = ""


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
    """Asks for offsets through a link; see AsyncQueueReader.queue_offsets."""
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
    # An end of 0 would be the queue's.
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
        # The first message is in it, and a later one only if there is room.
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
    """Notes a group's progress through a link; see AsyncQueueReader.commit_offsets."""
    request = pb.CommitOffsetsRequest(consumer_group=group, topic=topic, topic_id=topic_id or "")
    for queue, offset in sorted(offsets.items()):
        request.queues.add(queue=queue, offset=offset)
    await link.call(lambda broker: broker.consumer.CommitOffsets, request)


class AsyncQueueReader:
    """Reads queues by offset; for replay, inspection and batch jobs. It leaves no trace at the broker."""

    def __init__(self, endpoint: Endpoint, *, retry: RetryConfig | None = None, tls: TlsConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._link = BrokerLink(endpoint, tls=tls, retry=retry)

    async def read_queue(
        self,
        topic: str,
        queue: int,
        offset: int,
        max_messages: int = 32,
        *,
        wait: float | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        topic_id: str | None = None,
    ) -> QueueSlice:
        """Reads messages from an offset on.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset wanted; below the first one kept, reading starts there.
            max_messages: How many to read at most.
            wait: Seconds to wait for the first message when there is none; None: do not wait.
            filter: Which messages are wanted; the others are passed over and do not count. None: all.
            topic_id: The topic that the offset is of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic or queue, another topic has the name by now (``TOPIC_REPLACED``), or
                the broker cannot read the filter.
            BrokerUnavailable: No broker answered in time.
        """
        return await read_queue(self._link, topic, queue, offset, max_messages, wait, filter, topic_id)

    async def queue_offsets(
        self, topic: str, group: str | None = None, *, time: datetime | None = None
    ) -> list[QueueOffset]:
        """Tells where the queues of a topic begin and end, and how far a group has come.

        Args:
            topic: Topic.
            group: Group whose progress to tell.
            time: A time, with its time zone, to tell the offsets of.

        Raises:
            RequestRefused: There is no such topic or group.
            BrokerUnavailable: No broker answered in time.
            TypeError: The time is no datetime.
            ValueError: The time has no time zone.
        """
        return await queue_offsets(self._link, topic, group, time)

    async def measure_queue(
        self,
        topic: str,
        queue: int,
        offset: int = 0,
        end_offset: int | None = None,
        *,
        max_bytes: int | None = None,
        topic_id: str | None = None,
    ) -> QueueMeasure:
        """Tells how many bytes a part of a queue has, or where it ends if it is to have no more than some.

        The broker adds up the sizes of all messages of the part, 100,000 of them in a call.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset of the part.
            end_offset: First offset that is no longer of it; None: where the queue ends.
            max_bytes: Bytes of bodies that it may have; None: any number. If there are any messages, it has one.
            topic_id: The topic that the offsets are of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic or queue, an offset is negative, or another topic has the name by now
                (``TOPIC_REPLACED``).
            BrokerUnavailable: No broker answered in time.
            ConfigurationError: max_bytes is below 1.
        """
        return await measure_queue(self._link, topic, queue, offset, end_offset, max_bytes, topic_id)

    async def commit_offsets(
        self, topic: str, group: str, offsets: Mapping[int, int], *, topic_id: str | None = None
    ) -> None:
        """Notes how far a group has come that reads by offset: its lag is seen, and retention can spare what is left.

        Args:
            topic: Topic.
            group: Group. It must exist, share its messages, and have no consumers.
            offsets: By number of the queue, the offset below which all is handled.
            topic_id: The topic that the offsets are of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic, queue or group, another topic has the name by now
                (``TOPIC_REPLACED``), or the group reads under leases.
            BrokerUnavailable: No broker answered in time.
        """
        await commit_offsets(self._link, topic, group, offsets, topic_id)

    async def close(self) -> None:
        """Closes the connections."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        """Does nothing: connections are made by the first call."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self.close()


class QueueReader:
    """Reads queues by offset; the synchronous form of AsyncQueueReader."""

    def __init__(self, endpoint: Endpoint, *, retry: RetryConfig | None = None, tls: TlsConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._core = AsyncQueueReader(endpoint, retry=retry, tls=tls)
        self._runner = BackgroundRunner("QueueReader")

    def read_queue(
        self,
        topic: str,
        queue: int,
        offset: int,
        max_messages: int = 32,
        *,
        wait: float | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        topic_id: str | None = None,
    ) -> QueueSlice:
        """Reads messages from an offset on.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset wanted; below the first one kept, reading starts there.
            max_messages: How many to read at most.
            wait: Seconds to wait for the first message when there is none; None: do not wait.
            filter: Which messages are wanted; the others are passed over and do not count. None: all.
            topic_id: The topic that the offset is of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic or queue, another topic has the name by now (``TOPIC_REPLACED``), or
                the broker cannot read the filter.
            BrokerUnavailable: No broker answered in time.
        """
        return self._runner.run(
            self._core.read_queue(topic, queue, offset, max_messages, wait=wait, filter=filter, topic_id=topic_id)
        )

    def queue_offsets(self, topic: str, group: str | None = None, *, time: datetime | None = None) -> list[QueueOffset]:
        """Tells where the queues of a topic begin and end, and how far a group has come.

        Args:
            topic: Topic.
            group: Group whose progress to tell.
            time: A time, with its time zone, to tell the offsets of.

        Raises:
            RequestRefused: There is no such topic or group.
            BrokerUnavailable: No broker answered in time.
            TypeError: The time is no datetime.
            ValueError: The time has no time zone.
        """
        return self._runner.run(self._core.queue_offsets(topic, group, time=time))

    def measure_queue(
        self,
        topic: str,
        queue: int,
        offset: int = 0,
        end_offset: int | None = None,
        *,
        max_bytes: int | None = None,
        topic_id: str | None = None,
    ) -> QueueMeasure:
        """Tells how many bytes a part of a queue has, or where it ends if it is to have no more than some.

        The broker adds up the sizes of all messages of the part, 100,000 of them in a call.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset of the part.
            end_offset: First offset that is no longer of it; None: where the queue ends.
            max_bytes: Bytes of bodies that it may have; None: any number. If there are any messages, it has one.
            topic_id: The topic that the offsets are of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic or queue, an offset is negative, or another topic has the name by now
                (``TOPIC_REPLACED``).
            BrokerUnavailable: No broker answered in time.
            ConfigurationError: max_bytes is below 1.
        """
        return self._runner.run(
            self._core.measure_queue(topic, queue, offset, end_offset, max_bytes=max_bytes, topic_id=topic_id)
        )

    def commit_offsets(
        self, topic: str, group: str, offsets: Mapping[int, int], *, topic_id: str | None = None
    ) -> None:
        """Notes how far a group has come that reads by offset: its lag is seen, and retention can spare what is left.

        Args:
            topic: Topic.
            group: Group. It must exist, share its messages, and have no consumers.
            offsets: By number of the queue, the offset below which all is handled.
            topic_id: The topic that the offsets are of, as QueueOffset tells it; None: whichever has the name.

        Raises:
            RequestRefused: There is no such topic, queue or group, another topic has the name by now
                (``TOPIC_REPLACED``), or the group reads under leases.
            BrokerUnavailable: No broker answered in time.
        """
        self._runner.run(self._core.commit_offsets(topic, group, offsets, topic_id=topic_id))

    def close(self) -> None:
        """Closes the connections. Safe to repeat."""
        try:
            if self._runner.started:
                self._runner.run(self._core.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        """Does nothing: connections are made by the first call."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connections."""
        self.close()
