"""The job that aggregates a topic into another one: figures over time windows, each written exactly once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions

from consumer_sdk.errors import ConfigurationError, HalfmqError
from consumer_sdk.spark.sink.micro_batches import write_once
from consumer_sdk.spark.source.brokers import require_topic
from consumer_sdk.spark.source.offsets import from_json
from halfmq_pipeline.failures import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["Aggregate", "Aggregated"]

_LONGEST_GROUP = 64
_LOOK_AFTER = 1
# The separator of a key's parts, and characters not allowed in keys.
_SPECIAL = r"[|%\x00-\x1f\x7f-\x9f]"


class Aggregated(NamedTuple):
    """A run's input: messages, non-empty micro-batches, and whether events came too late to be counted."""

    messages: int
    batches: int
    late: bool


@dataclass(frozen=True)
class Aggregate:
    """Settings of the job.

    Attributes:
        options: Of the Spark source and sink: endpoint and TLS.
        topic: Topic to read; its messages are JSON objects.
        into: Topic to write to: one message for each window and group.
        name: Unique name of the sink.
        checkpoint: Folder for Spark's progress, on storage that all executors reach.
        columns: The fields of the messages, as ``carrier string, dep_delay double, time_hour timestamp``.
        time: Expression of the event's time, over the fields and the message's own columns.
        window: Length of a window, as ``1 hour``.
        slide: Distance of two windows, where they overlap; None: they do not.
        watermark: How late an event may come, as ``10 minutes``; later ones are not counted. Queues are read side by
            side, so a backlog needs more: as far as the times of messages in two queues may lie apart.
        group_by: Expressions with names, as ``carrier`` or ``upper(origin) AS airport``.
        figures: Aggregates with names, as ``count(*) AS flights``.
        mode: ``append`` writes a window once, when it is complete; ``update`` whenever it has changed.
        group: A consumer group to report the progress to; None: none.
        skip_malformed: Skip messages that are not such objects, or have no time; otherwise they end the job.
        max_offsets_per_trigger: Messages of a micro-batch.
        say: Called with progress messages, one line each.
    """

    options: Mapping[str, str]
    topic: str
    into: str
    name: str
    checkpoint: str
    columns: str
    time: str
    window: str
    figures: tuple[str, ...]
    slide: str | None = None
    watermark: str = "10 minutes"
    group_by: tuple[str, ...] = ()
    mode: Literal["append", "update"] = "append"
    group: str | None = None
    skip_malformed: bool = False
    max_offsets_per_trigger: int = 50_000
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def run(self, spark: SparkSession, every: float | None = None) -> Aggregated:
        """Processes the current messages, or runs continuously.

        The messages written have the key ``group|...|start of the window``. With ``update`` all of one window and
        group are one message group, so the last one is the newest.

        Args:
            spark: The session.
            every: Seconds between micro-batches; None: end when the current messages are processed.

        Raises:
            ConfigurationError: A setting is invalid.
            HalfmqError: The query failed; run it again to resume it.
        """
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        if zone != "UTC":
            msg = f"spark.sql.session.timeZone is {zone!r}, and windows are written in UTC; set it to UTC"
            raise ConfigurationError(msg, field="spark.sql.session.timeZone")
        reading = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.max_offsets_per_trigger)}
        reading |= {"group": self.group} if self.group else {}
        source = spark.readStream.format("halfmq").options(**self.options, **reading, topic=self.topic)
        require_topic(self.options, self.into)
        try:
            writer = self._writer(self._written(source.load())).option("checkpointLocation", self.checkpoint)
            writer = (
                writer.trigger(availableNow=True)
                if every is None
                else writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
            )
            query = writer.start()
        except PySparkException as error:
            raise ConfigurationError(first_line(error), field="aggregate") from error
        try:
            return self._watch(query)
        finally:
            query.stop()

    def _writer(self, written: DataFrame) -> DataStreamWriter:
        if self.mode == "append":
            return written.writeStream.format("halfmq").options(**self.options, topic=self.into, sinkId=self.name)
        # Spark passes only appended rows to Python sinks.
        return written.writeStream.outputMode("update").foreachBatch(
            lambda frame, number: write_once(frame, number, **self.options, write_id=self.name, topic=self.into)
        )

    def _written(self, source: DataFrame) -> DataFrame:
        """The sink's columns."""
        rows = self._events(source).withWatermark("event_time", self.watermark)
        keys = [functions.expr(text) for text in self.group_by]
        window = functions.window("event_time", self.window, self.slide)
        first, *more = (functions.expr(text) for text in self.figures)
        condensed = rows.groupBy(window.alias("window"), *keys).agg(first, *more)
        names = [name for name in condensed.columns if name != "window"]
        start, end = (functions.date_format(f"window.{edge}", "yyyy-MM-dd'T'HH:mm:ss'Z'") for edge in ("start", "end"))
        content = functions.to_json(
            functions.struct(start.alias("window_start"), end.alias("window_end"), *(f"`{name}`" for name in names)),
            {"ignoreNullFields": "false"},
        )
        groups = [_part_of_key(f"`{name}`") for name in names[: len(keys)]]
        key = functions.concat_ws("|", *groups, start)
        written = condensed.select(content.alias("value"), key.alias("key"))
        return written.withColumn("message_group", _group_of("key")) if self.mode == "update" else written

    def _events(self, source: DataFrame) -> DataFrame:
        """The fields of the messages, and the time of each."""
        text = functions.col("value").cast("string")
        parsed = source.withColumn("fields", functions.from_json(text, f"{self.columns}, _malformed string", _PARSING))
        parsed = parsed.withColumn("_place", functions.concat_ws("/", "topic", "queue", "offset"))
        fields = {field.name for field in parsed.schema["fields"].dataType.fields}  # type: ignore[attr-defined]
        # A field takes precedence over a column of the same name.
        rows = parsed.select("fields.*", "_place", *(name for name in source.columns if name not in fields))
        rows = rows.withColumn("event_time", functions.expr(self.time).cast("timestamp"))
        good = functions.col("_malformed").isNull() & functions.col("event_time").isNotNull()
        if self.skip_malformed:
            return rows.where(good)
        what = functions.concat(
            functions.lit("the message at "),
            functions.col("_place"),
            functions.lit(" is no JSON object with these fields and a time; mend the fields, or skip such messages"),
        )
        checked = functions.when(good, functions.col("event_time")).otherwise(functions.raise_error(what))
        return rows.withColumn("event_time", checked.cast("timestamp"))

    def _watch(self, query: StreamingQuery) -> Aggregated:
        """Reports every micro-batch until the query ends."""
        told = -1
        messages, batches, late = 0, 0, False
        try:
            while True:
                ended = query.awaitTermination(_LOOK_AFTER)
                for progress in query.recentProgress:
                    if progress["batchId"] <= told or not progress["numInputRows"]:
                        continue
                    told = progress["batchId"]
                    messages += progress["numInputRows"]
                    batches += 1
                    dropped = sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"])
                    late = late or bool(dropped)
                    too_late = ", events came too late and are not counted" if dropped else ""
                    line = f"micro-batch {told}: {progress['numInputRows']:,} messages, lag {_lag(progress):,}"
                    self.say(line + too_late)
                if ended:
                    return Aggregated(messages, batches, late)
        except PySparkException as error:
            raise HalfmqError(first_line(error)) from error


_PARSING = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_malformed"}


def _part_of_key(column: str) -> Column:
    """A value as a part of a key: injective, and always accepted by the broker."""
    text = functions.col(column).cast("string")
    plain = functions.when(text.rlike(_SPECIAL), functions.url_encode(text)).otherwise(text)
    return functions.coalesce(plain, functions.lit("%null"))


def _group_of(key: str) -> Column:
    """A message group for every key, however long."""
    return functions.when(functions.octet_length(key) <= _LONGEST_GROUP, functions.col(key)).otherwise(
        functions.sha2(key, 256)
    )


def _lag(progress: Mapping[str, object]) -> int:
    """Number of unread messages."""
    source = progress["sources"][0]  # type: ignore[index]
    latest, end = (from_json(json.loads(source[name] or "{}") or {}) for name in ("latestOffset", "endOffset"))
    return sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())
