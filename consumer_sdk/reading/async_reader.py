"""Reading queues by offset, on an event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from client_core.connection import BrokerLink
from consumer_sdk.reading.queues import (
    QueueMeasure,
    QueueOffset,
    QueueSlice,
    commit_offsets,
    measure_queue,
    queue_offsets,
    read_queue,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from types import TracebackType

    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.filters import MessageFilter

__all__ = ["AsyncQueueReader"]


class AsyncQueueReader:
    """Reads queues by offset; for replay, inspection and batch jobs. It has no effect at the broker."""

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
            filter: Only matching messages; the others are skipped and do not count. None: all.
            topic_id: Identity of the offset's topic, from QueueOffset; None: not checked.

        Raises:
            RequestRefused: There is no such topic or queue, another topic has the name by now (``TOPIC_REPLACED``), the
                offset is of a time that a restore of the database undid (``OFFSET_LOST``; the text names the one to go
                on from), or the broker cannot read the filter.
            BrokerUnavailable: No broker answered in time.
        """
        return await read_queue(self._link, topic, queue, offset, max_messages, wait, filter, topic_id)

    async def queue_offsets(
        self, topic: str, group: str | None = None, *, time: datetime | None = None
    ) -> list[QueueOffset]:
        """Returns the first and last offsets of a topic's queues, and a group's progress.

        Args:
            topic: Topic.
            group: Group whose progress to return.
            time: A time, with its time zone, whose offsets to return.

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
        """Returns the size of a part of a queue in bytes, or the offset at which it reaches a limit.

        The broker adds up the sizes of all messages of the part, 100,000 of them in a call.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset of the part.
            end_offset: End of the part, exclusive; None: the queue's end.
            max_bytes: Limit in bytes of bodies; None: none. If there are any messages, the part has at least one.
            topic_id: Identity of the offsets' topic, from QueueOffset; None: not checked.

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
        """Records the progress of a group that reads by offset, for its lag and for retention.

        Args:
            topic: Topic.
            group: Group. It must exist, share its messages, and have no consumers.
            offsets: By number of the queue, the offset below which all messages are handled.
            topic_id: Identity of the offsets' topic, from QueueOffset; None: not checked.

        Raises:
            RequestRefused: There is no such topic, queue or group, another topic has the name by now
                (``TOPIC_REPLACED``), an offset is of a time that a restore of the database undid (``OFFSET_LOST``), or
                the group reads under leases.
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
