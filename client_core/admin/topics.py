"""Topics, as administration returns them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.times import as_duration, read_span, read_time
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from google.protobuf.duration_pb2 import Duration

    from client_core.times import Span

__all__ = ["Compression", "QueueInfo", "TopicInfo", "compression_to_wire", "optional_duration"]


class Compression(IntEnum):
    """How the broker stores bodies; clients send and receive them uncompressed, whichever it is."""

    NONE = pb.COMPRESSION_NONE
    """As they are."""
    ZSTD = pb.COMPRESSION_ZSTD
    """By zstd, each for itself, where that makes it shorter."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic's settings.

    Attributes:
        name: Its name.
        queues: Number of queues for messages without a priority.
        retention: How long messages are kept.
        retention_bytes: Bytes of bodies that are kept, at most; 0: no limit.
        dedup_window: How long other messages with the same dedup_key are rejected.
        priority_levels: Number of priorities.
        created_at: When it was created (database time, UTC).
        topic_id: Identity: a topic that is deleted and re-created under its name has another one.
        compression: How the broker stores the bodies of new messages.
    """

    name: str
    queues: int
    retention: timedelta
    retention_bytes: int
    dedup_window: timedelta
    priority_levels: int
    created_at: datetime | None
    topic_id: str = ""
    compression: Compression = Compression.NONE

    @classmethod
    def of(cls, topic: pb.Topic) -> TopicInfo:
        """Reads the wire form."""
        return cls(
            name=topic.name,
            queues=topic.queue_count,
            retention=read_span(topic.retention),
            retention_bytes=topic.retention_bytes,
            dedup_window=read_span(topic.dedup_window),
            priority_levels=topic.priority_levels,
            created_at=read_time(topic.created_at),
            topic_id=topic.topic_id,
            compression=_COMPRESSIONS.get(topic.compression, Compression.NONE),
        )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue of a topic.

    Attributes:
        queue: Number within the topic, from 0.
        min_offset: First offset that is kept.
        max_offset: Offset that the next message released will get.
        priority: Priority of the messages in it.
        stored_bytes: Bytes of the bodies in it.
        messages: Messages that are kept; fewer than the difference of the offsets if a restore of the database left a
            gap in them.
    """

    queue: int
    min_offset: int
    max_offset: int
    priority: int
    stored_bytes: int
    messages: int

    @classmethod
    def of(cls, queue: pb.QueueDescription) -> QueueInfo:
        """Reads the wire form."""
        # A broker of an earlier version does not tell, and leaves no gaps.
        messages = queue.messages if queue.HasField("messages") else queue.max_offset - queue.min_offset
        return cls(queue.queue, queue.min_offset, queue.max_offset, queue.priority, queue.stored_bytes, messages)


def optional_duration(name: str, span: Span | None) -> Duration | None:
    """Makes the wire form of an optional duration; see as_duration."""
    return None if span is None else as_duration(name, span)


def compression_to_wire(compression: Compression | None) -> pb.Compression.ValueType:
    """Makes the wire form; None stands for unset."""
    return pb.COMPRESSION_UNSPECIFIED if compression is None else pb.Compression.ValueType(compression)


_COMPRESSIONS: dict[int, Compression] = {each.value: each for each in Compression}
