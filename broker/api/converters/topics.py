"""Topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.domain.topic import Compression, TopicChange
from broker.errors import InvalidArgument
from broker.wire.times import fill_duration, micros, timestamp
from halfmq.v1 import admin_pb2

if TYPE_CHECKING:
    from broker.domain.topic import Topic


def topic(found: Topic) -> admin_pb2.Topic:
    """A topic's settings."""
    result = admin_pb2.Topic(
        name=found.name,
        queue_count=found.queue_count,
        created_at=timestamp(found.created_at),
        retention_bytes=found.retention_bytes,
        priority_levels=found.priority_levels,
        topic_id=found.identity,
        compression=cast("admin_pb2.Compression.ValueType", int(found.compression)),
    )
    fill_duration(result.retention, found.retention)
    fill_duration(result.dedup_window, found.dedup_window)
    return result


def new_topic(wanted: admin_pb2.Topic) -> TopicChange:
    """The settings of a topic to create.

    Raises:
        InvalidArgument: a value is invalid.
    """
    return TopicChange(
        queue_count=wanted.queue_count,
        retention=micros(wanted.retention, "topic.retention"),
        retention_bytes=wanted.retention_bytes,
        dedup_window=micros(wanted.dedup_window, "topic.dedup_window"),
        compression=_compression_in(wanted.compression, "topic.compression"),
    )


def change(request: admin_pb2.UpdateTopicRequest) -> TopicChange:
    """Changes of a topic.

    Raises:
        InvalidArgument: a value is invalid.
    """
    return TopicChange(
        queue_count=request.queue_count if request.HasField("queue_count") else None,
        retention=micros(request.retention, "retention") if request.HasField("retention") else None,
        retention_bytes=request.retention_bytes if request.HasField("retention_bytes") else None,
        dedup_window=micros(request.dedup_window, "dedup_window") if request.HasField("dedup_window") else None,
        compression=_compression_in(request.compression, "compression"),
    )


def _compression_in(given: int, field: str) -> Compression | None:
    try:
        return Compression(given) if given else None
    except ValueError:
        raise InvalidArgument("Say COMPRESSION_NONE or COMPRESSION_ZSTD.", field=field) from None
