"""The readers of the data source: the driver plans ranges of queues, and executors read them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import grpc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from consumer_sdk.errors import ConfigurationError, RequestRefused
from consumer_sdk.queues import QueueReader
from consumer_sdk.spark.columns import Projection
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.offsets import as_json, bounded, from_json, ranges_between, split
from consumer_sdk.spark.options import EARLIEST, LATEST
from consumer_sdk.spark.scanning import data_lost, scan
from producer_sdk.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from consumer_sdk.queues import QueueOffset
    from consumer_sdk.spark.offsets import Offsets, Queue, QueueRange
    from consumer_sdk.spark.options import Bound, ReadOptions

__all__ = ["BatchReader", "StreamReader"]


class _Partition(InputPartition):
    """A range of a queue, for one task."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)


class _Brokers:
    """What the driver asks the brokers. Connections are made in the process that asks, and never travel."""

    def __init__(self, options: ReadOptions) -> None:
        connection = options.connection
        tls = connection.tls_config()
        self._options = options
        self._reader = QueueReader(connection.endpoint, tls=tls)
        self._admin = Admin(connection.endpoint, tls=tls)
        self._seen: set[str] = set()
        self._reported: Offsets = {}

    def queues(self, time: datetime | None = None) -> dict[Queue, QueueOffset]:
        """All queues that are to be read; those of topics that are gone are left out.

        Raises:
            RequestRefused: There is no such topic, and never was while this runs.
        """
        found: dict[Queue, QueueOffset] = {}
        for topic in self._topics():
            try:
                queues = self._reader.queue_offsets(topic, time=time)
            except RequestRefused as error:
                if error.code is not grpc.StatusCode.NOT_FOUND or topic not in self._seen:
                    raise
                continue
            self._seen.add(topic)
            found |= {(topic, each.queue): each for each in queues}
        return found

    def _topics(self) -> Sequence[str]:
        pattern = self._options.topic_pattern
        if pattern is None:
            return self._options.topics
        matching = [topic.name for topic in self._admin.list_topics() if re.fullmatch(pattern, topic.name)]
        self._seen.update(matching)
        return matching

    def place(self, bound: Bound, option: str) -> Offsets:
        """Where a bound is, in all queues that there are.

        Raises:
            ConfigurationError: It names a queue that is not there.
        """
        if isinstance(bound, datetime):
            return {
                queue: each.max_offset if each.offset_at_time is None else each.offset_at_time
                for queue, each in self.queues(bound).items()
            }
        found = self.queues()
        if isinstance(bound, str):
            end = {"earliest": EARLIEST, "latest": LATEST}[bound]
            return {queue: _offset_of(each, end) for queue, each in found.items()}
        named = {(topic, queue): offset for topic, queues in bound.items() for queue, offset in queues.items()}
        if missing := sorted(named.keys() - found.keys()):
            topic, queue = missing[0]
            msg = f"{option} names queue {queue} of {topic!r}, which does not exist"
            raise ConfigurationError(msg, field=option)
        # What is not named is read whole.
        otherwise = EARLIEST if option == "startingOffsets" else LATEST
        return {queue: _offset_of(each, named.get(queue, otherwise)) for queue, each in found.items()}

    def report(self, done: Offsets) -> None:
        """Tells the brokers how far the query is, where it has a group and came further since the last time.

        Raises:
            RequestRefused: There is no such group, or it has consumers.
        """
        group = self._options.group
        if group is None or done == self._reported:
            return
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, queue), offset in done.items():
            by_topic.setdefault(topic, {})[queue] = offset
        for topic, offsets in by_topic.items():
            self._reader.commit_offsets(topic, group, offsets)
        self._reported = dict(done)

    def close(self) -> None:
        """Closes the connections."""
        self._reader.close()
        self._admin.close()


def _offset_of(queue: QueueOffset, offset: int) -> int:
    return {EARLIEST: queue.min_offset, LATEST: queue.max_offset}.get(offset, offset)


class _Reading:
    """What a task does."""

    options: ReadOptions
    schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, as Arrow record batches."""
        if partition.value is None:
            # Where there are no ranges, Spark has one task read nothing.
            return
        projection = Projection(self.schema)
        with shown_in_one_line():
            for messages in scan(self.options, partition.value):
                yield projection.batch(messages)


class BatchReader(_Reading, DataSourceReader):
    """Reads what is there now, or up to an end."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Takes what is wanted; nothing is connected yet."""
        self.options = options
        self.schema = schema

    @shown_in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges, fixed now: what comes later is not read."""
        brokers = _Brokers(self.options)
        try:
            start = brokers.place(self.options.start or "earliest", "startingOffsets")
            end = brokers.place(self.options.end, "endingOffsets")
        finally:
            brokers.close()
        return [_Partition(each) for each in split(ranges_between(start, end), self.options.min_partitions)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Takes what is wanted; nothing is connected yet."""
        self.options = options
        self.schema = schema
        self._made: _Brokers | None = None
        self._last: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What executors get: no connections."""
        return {**self.__dict__, "_made": None, "_last": None}

    @shown_in_one_line()
    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        return as_json(self._driver.place(self.options.start or "latest", "startingOffsets"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much a micro-batch takes, where the trigger does not say otherwise."""
        return ReadMaxRows(self.options.max_offsets_per_trigger)

    @shown_in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end: what comes later is not read."""
        self._last = self._heads()

    @shown_in_one_line()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        """Where the next micro-batch ends."""
        begin = from_json(start)
        # Everything before it is done: Spark's own commit() comes a batch later, and never for the last one.
        self._driver.report(begin)
        queues = self._driver.queues()
        for queue, offset in begin.items():
            if queue not in queues:
                data_lost(self.options, queue, "the topic was deleted")
            elif offset > queues[queue].max_offset:
                ends = queues[queue].max_offset
                data_lost(self.options, queue, f"it ends at {ends}, and was read up to {offset}")
                begin[queue] = queues[queue].min_offset
        heads = {queue: each.max_offset for queue, each in queues.items()}
        if self._last is not None:
            heads = {queue: min(head, self._last.get(queue, 0)) for queue, head in heads.items()}
        # What retention took takes no share of the limit.
        kept = {queue: max(begin.get(queue, 0), each.min_offset) for queue, each in queues.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(heads.values())
        return as_json(bounded(kept, heads, most))

    @shown_in_one_line()
    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802 - Spark's name
        """Where the queues end, for the progress of the query."""
        return as_json(self._heads())

    @shown_in_one_line()
    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        """The ranges of a micro-batch."""
        begin, until = from_json(start), from_json(end)
        # New queues begin at the first message that is kept: what was gone before is no loss of this query. So do
        # those of a topic that was made anew, which end before they began.
        anew = {queue for queue, offset in until.items() if offset < begin.get(queue, offset + 1)}
        if anew:
            begin |= {queue: each.min_offset for queue, each in self._driver.queues().items() if queue in anew}
        return [_Partition(each) for each in split(ranges_between(begin, until), self.options.min_partitions)]

    def stop(self) -> None:
        """Closes the connections."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _driver(self) -> _Brokers:
        if self._made is None:
            self._made = _Brokers(self.options)
        return self._made

    def _heads(self) -> Offsets:
        return {queue: each.max_offset for queue, each in self._driver.queues().items()}
