"""The readers of the data source: the driver plans ranges of queues, and executors read them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.source.brokers import Brokers, of_lost
from consumer_sdk.spark.source.columns import Projection
from consumer_sdk.spark.source.offsets import (
    as_json,
    bounded,
    from_json,
    ranges_between,
    replaced,
    split,
    topic_ids_of,
)
from consumer_sdk.spark.source.pruning import Pruning, PushFilters
from consumer_sdk.spark.source.scanning import MADE_ANEW, data_lost, scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from consumer_sdk.reading import OffsetGap, QueueOffset
    from consumer_sdk.spark.options import ReadOptions
    from consumer_sdk.spark.source.offsets import Offsets, Queue, QueueRange, TopicIds

__all__ = ["BatchReader", "StreamReader", "read_range"]


def read_range(options: ReadOptions, schema: StructType, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as Arrow record batches of the columns that the schema names.

    Raises:
        DataLoss: Some were deleted, unless that is allowed.
        HalfmqError: The broker refused, or none answered.
    """
    projection = Projection(schema)
    for parts in scan(options, wanted, projection.needed):
        yield projection.batch(parts)


class _Reading:
    """The work of a task."""

    options: ReadOptions
    schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, as Arrow record batches."""
        if partition.value is None:
            # Without ranges, Spark runs one task that reads nothing.
            return
        with shown_in_one_line():
            yield from read_range(self._of_tasks(), self.schema, partition.value)

    def _of_tasks(self) -> ReadOptions:
        """The settings of tasks."""
        return self.options


class BatchReader(_Reading, DataSourceReader):
    """Reads up to the current end, or up to a given one."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Reads the settings; nothing is connected yet."""
        self.options = options
        self.schema = schema
        self._pruning = Pruning()

    @property
    def pushFilters(self) -> PushFilters:  # noqa: N802 - Spark's name
        """Takes filters of the query that save reading; Spark evaluates all of them again."""
        return PushFilters(self._pruning)

    def _of_tasks(self) -> ReadOptions:
        wanted = self._pruning.wanted if self.options.wanted is None else None
        return self.options if wanted is None else replace(self.options, wanted=wanted)

    @shown_in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges, fixed now: later messages are not read."""
        brokers = Brokers(self.options)
        try:
            while True:
                start = brokers.place(self.options.start or "earliest", "startingOffsets")
                before = brokers.topic_ids
                end = brokers.place(self.options.end, "endingOffsets")
                topic_ids = brokers.topic_ids
                # A topic that was re-created between the two calls starts at its own first offset.
                if not replaced(before, topic_ids):
                    break
            start, end = self._pruning.applied(start, end, brokers.place_at)
        finally:
            brokers.close()
        return _partitions(ranges_between(start, end, topic_ids, brokers.gaps), self.options)


def _partitions(ranges: Sequence[QueueRange], options: ReadOptions) -> Sequence[InputPartition]:
    return [InputPartition(each) for each in split(ranges, options.min_partitions, options.max_records_per_partition)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads continuously."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Reads the settings; nothing is connected yet."""
        self.options = options
        self.schema = schema
        self._made: Brokers | None = None
        self._last: tuple[Offsets, TopicIds] | None = None
        self._waits_until = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for executors without connections."""
        return {**self.__dict__, "_made": None, "_last": None}

    @shown_in_one_line()
    def initialOffset(self) -> dict[str, dict[str, Any]]:  # noqa: N802 - Spark's name
        """The start of a new query."""
        place = self._driver.place(self.options.start or "latest", "startingOffsets")
        return as_json(place, self._driver.topic_ids)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The size of a micro-batch, unless the trigger sets it."""
        return ReadMaxRows(self.options.max_offsets_per_trigger)

    @shown_in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fixes the end: later messages are not read."""
        self._last = self._heads(), self._driver.topic_ids

    @shown_in_one_line()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Mapping[str, Any]], limit: ReadLimit
    ) -> dict[str, dict[str, Any]]:
        """The end of the next micro-batch."""
        queues = self._queues()
        topic_ids = self._driver.topic_ids
        anew = replaced(topic_ids_of(start), topic_ids)
        begin = {queue: offset for queue, offset in from_json(start).items() if queue[0] not in anew}
        lost = self._lost(begin)
        # Everything before it is done: Spark's commit() is called a batch later, and never for the last one.
        self._driver.report({queue: offset for queue, offset in begin.items() if queue in queues and queue not in lost})
        for topic in sorted(anew):
            data_lost(self.options, min(queue for queue in queues if queue[0] == topic), MADE_ANEW)
        for queue, gap in lost.items():
            data_lost(self.options, queue, f"it was read up to {begin[queue]}, and {of_lost(gap)}")
            begin[queue] = gap.end_offset
        for queue, offset in begin.items():
            if queue not in queues:
                given_up = self.options.assigned is not None and queue[1] not in self.options.assigned.get(queue[0], ())
                data_lost(self.options, queue, "it is not assigned any more" if given_up else "the topic was deleted")
            elif offset > queues[queue].max_offset:
                ends = queues[queue].max_offset
                data_lost(self.options, queue, f"it ends at {ends}, and was read up to {offset}")
                begin[queue] = queues[queue].min_offset
        heads = {queue: each.max_offset for queue, each in queues.items()}
        if self._last is not None:
            last, last_ids = self._last
            later = replaced(last_ids, topic_ids)
            heads = {queue: 0 if queue[0] in later else min(head, last.get(queue, 0)) for queue, head in heads.items()}
        # Messages deleted by retention do not count towards the limit.
        kept = {queue: max(begin.get(queue, 0), each.min_offset) for queue, each in queues.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(heads.values())
        until = bounded(kept, heads, most, self._driver.gaps)
        if self._last is None and self._waits(sum(queues[queue].count(kept[queue], heads[queue]) for queue in heads)):
            return {topic: dict(queues) for topic, queues in start.items()}
        if self.options.max_bytes_per_trigger is not None:
            until = self._driver.within(kept, until, self.options.max_bytes_per_trigger)
        return as_json(until, topic_ids)

    def _waits(self, new: int) -> bool:
        """Whether the next micro-batch waits for more messages."""
        least = self.options.min_offsets_per_trigger
        if least is None or new <= 0:
            return False
        if new < least and time.monotonic() < self._waits_until:
            return True
        self._waits_until = time.monotonic() + self.options.max_trigger_delay
        return False

    @shown_in_one_line()
    def reportLatestOffset(self) -> dict[str, dict[str, Any]]:  # noqa: N802 - Spark's name
        """The queues' ends, for the progress of the query."""
        return as_json(self._heads(), self._driver.topic_ids)

    @shown_in_one_line()
    def partitions(
        self, start: Mapping[str, Mapping[str, Any]], end: Mapping[str, Mapping[str, Any]]
    ) -> Sequence[InputPartition]:
        """The ranges of a micro-batch."""
        until, topic_ids = from_json(end), topic_ids_of(end)
        if self._driver.gaps is None:
            # A micro-batch that was planned by an earlier run.
            self._queues()
        others = replaced(topic_ids_of(start), topic_ids)
        begin = {queue: offset for queue, offset in from_json(start).items() if queue[0] not in others}
        # New queues begin at the first message that is kept: earlier deletions are no data loss of this query. So do
        # those of a re-created topic, whose ends are before their starts.
        anew = {queue for queue, offset in until.items() if offset < begin.get(queue, offset + 1)}
        if anew:
            queues = self._queues()
            # Ranges of a topic that was deleted meanwhile are refused when they are read.
            gone = replaced(topic_ids, self._driver.topic_ids)
            begin |= {q: each.min_offset for q, each in queues.items() if q in anew and q[0] not in gone}
        for queue, gap in self._lost(until).items():
            data_lost(self.options, queue, f"it was to be read up to {until[queue]}, and {of_lost(gap)}")
        return _partitions(ranges_between(begin, until, topic_ids, self._driver.gaps), self.options)

    def _lost(self, offsets: Offsets) -> dict[Queue, OffsetGap]:
        """The gaps inside of which offsets are: of a time that a restore of the database undid."""
        gaps = self._driver.gaps or {}
        found = {queue: gaps[queue].lost(offset) for queue, offset in offsets.items() if queue in gaps}
        return {queue: gap for queue, gap in found.items() if gap is not None}

    def stop(self) -> None:
        """Closes the connections."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _driver(self) -> Brokers:
        if self._made is None:
            self._made = Brokers(self.options)
        return self._made

    def _queues(self) -> Mapping[Queue, QueueOffset]:
        # A deleted topic is data loss; a new query resolves it by place(), which refuses a missing topic.
        return self._driver.queues(missing_ok=not self.options.fail_on_data_loss)

    def _heads(self) -> Offsets:
        return {queue: each.max_offset for queue, each in self._queues().items()}
