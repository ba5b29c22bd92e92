"""The readers of the data source: the driver plans ranges of queues, and executors read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.source.brokers import Brokers
from consumer_sdk.spark.source.columns import Projection
from consumer_sdk.spark.source.offsets import as_json, bounded, from_json, ranges_between, split
from consumer_sdk.spark.source.scanning import data_lost, scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from consumer_sdk.queues import QueueOffset
    from consumer_sdk.spark.options import ReadOptions
    from consumer_sdk.spark.source.offsets import Offsets, Queue, QueueRange

__all__ = ["BatchReader", "StreamReader", "read_range"]


def read_range(options: ReadOptions, schema: StructType, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
    """The messages of a range, as Arrow record batches of the columns that the schema names.

    Raises:
        DataLoss: Some are gone, unless that is allowed.
        HalfmqError: The broker refused, or none answered.
    """
    projection = Projection(schema)
    for parts in scan(options, wanted):
        yield projection.batch(parts)


class _Reading:
    """What a task does."""

    options: ReadOptions
    schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, as Arrow record batches."""
        if partition.value is None:
            # Where there are no ranges, Spark has one task read nothing.
            return
        with shown_in_one_line():
            yield from read_range(self.options, self.schema, partition.value)


class BatchReader(_Reading, DataSourceReader):
    """Reads what is there now, or up to an end."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Takes what is wanted; nothing is connected yet."""
        self.options = options
        self.schema = schema

    @shown_in_one_line()
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges, fixed now: what comes later is not read."""
        brokers = Brokers(self.options)
        try:
            start = brokers.place(self.options.start or "earliest", "startingOffsets")
            end = brokers.place(self.options.end, "endingOffsets")
        finally:
            brokers.close()
        return [InputPartition(each) for each in split(ranges_between(start, end), self.options.min_partitions)]


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Takes what is wanted; nothing is connected yet."""
        self.options = options
        self.schema = schema
        self._made: Brokers | None = None
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
        queues = self._queues()
        # Everything before it is done: Spark's own commit() comes a batch later, and never for the last one.
        self._driver.report({queue: offset for queue, offset in begin.items() if queue in queues})
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
            begin |= {queue: each.min_offset for queue, each in self._queues().items() if queue in anew}
        return [InputPartition(each) for each in split(ranges_between(begin, until), self.options.min_partitions)]

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
        # A topic that is gone is a loss; a query that begins asks for it by place(), which refuses what is not there.
        return self._driver.queues(missing_ok=not self.options.fail_on_data_loss)

    def _heads(self) -> Offsets:
        return {queue: each.max_offset for queue, each in self._queues().items()}
