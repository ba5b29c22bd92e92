"""Reading ranges of queues from the broker, prefetching the next part while the last one is processed."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import grpc

from client_core.filters import filter_to_wire
from consumer_sdk.errors import HalfmqError, RequestRefused
from consumer_sdk.spark.connections import connected
from consumer_sdk.spark.source.slices import columns_of, count_before
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from client_core.connection import Broker, BrokerLink
    from consumer_sdk.spark.options import ReadOptions
    from consumer_sdk.spark.source.offsets import Queue, QueueRange
    from halfmq.v1.consumer_pb2 import LogColumn, LogColumns

__all__ = ["MADE_ANEW", "DataLoss", "data_lost", "scan"]

_log = logging.getLogger("halfmq.spark")

MADE_ANEW = "the topic was deleted and created again"

_BYTES_AT_A_TIME = 4 * 1024 * 1024
_SECONDS_AT_A_TIME = 2.0


class DataLoss(HalfmqError):
    """Messages were deleted before they were read: by retention, or the topic was deleted and re-created."""


def scan(
    options: ReadOptions, wanted: QueueRange, only: Sequence[LogColumn.ValueType] = ()
) -> Iterator[list[tuple[LogColumns, int]]]:
    """The messages of a range in parts: columns, and how many of their messages belong to the range.

    Args:
        options: Settings.
        wanted: The range.
        only: The columns that are needed; empty: all. A broker may answer by more of them.

    Raises:
        DataLoss: Some were deleted, unless that is allowed.
        HalfmqError: The broker refused, or none answered.
    """
    link, runner = connected(options.connection)
    queue, at = (wanted.topic, wanted.queue), wanted.start
    upcoming = runner.submit(_read(link, options, wanted, only, at))
    try:
        while True:
            try:
                part = upcoming.result()
            except RequestRefused as error:
                if error.reason == "TOPIC_REPLACED":
                    data_lost(options, queue, MADE_ANEW)
                    return
                if error.reason == "OFFSET_LOST":
                    data_lost(options, queue, str(error))
                    return
                if error.code is not grpc.StatusCode.NOT_FOUND:
                    raise
                data_lost(options, queue, "the topic was deleted")
                return
            for first, end in part.lost:
                data_lost(options, queue, f"retention took offsets {first} to {min(end, wanted.end) - 1}")
            following = part.next_offset
            ended = following >= wanted.end
            if not ended and following == at:
                data_lost(options, queue, f"it ends at {part.max_offset}, before {wanted.end}")
                ended = True
            if not ended:
                upcoming = runner.submit(_read(link, options, wanted, only, following))
            counted = [(columns, count_before(columns, wanted.end)) for columns in part.columns]
            if some := [(columns, count) for columns, count in counted if count]:
                yield some
            if ended:
                return
            at = following
    finally:
        upcoming.cancel()


def data_lost(options: ReadOptions, queue: Queue, what: str) -> None:
    """Reports that messages were deleted before they were read.

    Raises:
        DataLoss: Unless that is allowed.
    """
    topic, number = queue
    lost = f"messages of queue {number} of {topic!r} are gone before they were read: {what}"
    if options.fail_on_data_loss:
        msg = f"{lost}; set failOnDataLoss to false to go on with what is there"
        raise DataLoss(msg)
    _log.warning("%s; going on with what is there", lost, extra={"topic": topic})


class _Part:
    """The result of one request."""

    __slots__ = ("columns", "lost", "max_offset", "next_offset")

    def __init__(self, at: int) -> None:
        self.columns: list[LogColumns] = []
        self.lost: list[tuple[int, int]] = []
        self.next_offset, self.max_offset = at, 0


async def _read(
    link: BrokerLink, options: ReadOptions, wanted: QueueRange, only: Sequence[LogColumn.ValueType], at: int
) -> _Part:
    request = consumer_pb2.ReadQueueRequest(
        topic=wanted.topic,
        queue=wanted.queue,
        offset=at,
        max_messages=min(options.messages_per_request, wanted.end - at),
        columns=True,
        only=only,
        topic_id=wanted.topic_id,
    )
    if options.wanted is not None:
        request.filter.CopyFrom(filter_to_wire("filter", options.wanted))

    async def read(broker: Broker, timeout: float) -> _Part:  # noqa: ASYNC109 - gRPC's own
        part, size = _Part(at), 0
        # Skipping by a filter takes time and returns nothing: the current offset must be reported periodically.
        enough = time.monotonic() + min(_SECONDS_AT_A_TIME, timeout / 2)
        call = broker.consumer.ReadQueue(request, timeout=timeout)
        async for response in call:
            if response.min_offset > part.next_offset:
                part.lost.append((part.next_offset, response.min_offset))
            if (columns := columns_of(response)) is not None:
                part.columns.append(columns)
            part.next_offset = max(part.next_offset, response.next_offset)
            part.max_offset = response.max_offset
            size += response.ByteSize()
            if size >= _BYTES_AT_A_TIME or part.next_offset >= wanted.end or time.monotonic() > enough:
                call.cancel()
                break
        return part

    return await link.attempt(read)
