"""Reading queues by offset, without a group and without leases; and the offsets of queues."""

from __future__ import annotations

from consumer_sdk.reading.async_reader import AsyncQueueReader
from consumer_sdk.reading.gaps import NO_GAPS, Gaps, OffsetGap
from consumer_sdk.reading.queues import (
    QueueMeasure,
    QueueOffset,
    QueueSlice,
    commit_offsets,
    measure_queue,
    queue_offsets,
    read_queue,
)
from consumer_sdk.reading.reader import QueueReader

__all__ = [
    "NO_GAPS",
    "AsyncQueueReader",
    "Gaps",
    "OffsetGap",
    "QueueMeasure",
    "QueueOffset",
    "QueueReader",
    "QueueSlice",
    "commit_offsets",
    "measure_queue",
    "queue_offsets",
    "read_queue",
]
