"""The job that writes archived messages to a topic again, in parts, each exactly once.

The messages are fixed by a plan, which is stored in the archive under the replay's name; the broker stores the
progress. So it can be killed at any time and run again, while the archive grows or is compacted.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions

from client_core.ids import new_id
from consumer_sdk.errors import ConfigurationError
from consumer_sdk.reading import Gaps, OffsetGap
from consumer_sdk.spark.options import WriteOptions
from consumer_sdk.spark.sink.writing import Epochs
from consumer_sdk.spark.source.brokers import require_topic
from consumer_sdk.spark.source.offsets import QueueRange, bounded, ranges_between
from halfmq_pipeline.archive.folder import Folder
from halfmq_pipeline.archive.layout import Span, chosen, missing, spans_by_queue
from halfmq_pipeline.archive.reading import files_of, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from consumer_sdk.spark.source.offsets import Offsets, Queue
    from halfmq_pipeline.archive.layout import Piece

__all__ = ["Replay", "Replayed"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,70}")
# Prefix of the broker's own properties, which it refuses from clients.
_OF_THE_BROKER = "halfmq."


class Replayed(NamedTuple):
    """A run's output: messages, and parts of the plan."""

    messages: int
    parts: int


@dataclass(frozen=True)
class Replay:
    """Settings of the job.

    Attributes:
        folder: Folder of the archive.
        topic: Topic that was archived.
        into: Topic to write to.
        name: Name of the replay, up to 70 letters, digits, "-" and "_". The same name continues the same plan.
        options: Of the Spark sink: endpoint and TLS.
        since, until: Messages that became visible in [since, until); None: no bound.
        messages_per_part: Messages released by one commit.
        origin_property: Property for a message's original position, as ``topic/queue/offset``; None: none.
        say: Called with progress messages, one line each.
    """

    folder: str
    topic: str
    into: str
    name: str
    options: Mapping[str, str]
    since: datetime | None = None
    until: datetime | None = None
    messages_per_part: int = 100_000
    origin_property: str | None = None
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def run(self, spark: SparkSession) -> Replayed:
        """Writes the missing parts, in order.

        Messages of a message group keep their order; others keep it within a queue.

        Raises:
            ConfigurationError: A setting is invalid, there is nothing to replay, or the name is another replay's.
            HalfmqError: A broker refused, or none answered.
        """
        if not _NAME.fullmatch(self.name):
            msg = f"the name {self.name!r} must have 1 to 70 of the characters a-z, A-Z, 0-9, '-' and '_'"
            raise ConfigurationError(msg, field="name")
        require_topic(self.options, self.into)
        folder = Folder(self.folder)
        parts, plan_id = self._plan(spark, folder)
        options = {**self.options, "topic": self.into, "writeId": f"replay-{self.name}"}
        checked = WriteOptions.read(options, streaming=False)
        last = Epochs(checked.connection, checked.sink, take_over=False).committed(plan_id)
        left = parts if last is None else parts[last + 1 :]
        total, began, messages = sum(map(_count, left)), time.monotonic(), 0
        for number, part in enumerate(left, len(parts) - len(left)):
            writer = self._rows(spark, folder, part).write.format("halfmq").options(**options)
            writer.options(writeNumber=number, writeQuery=plan_id).mode("append").save()
            messages += _count(part)
            rate = messages / (time.monotonic() - began)
            self.say(f"part {number + 1:,} of {len(parts):,}: {messages:,} of {total:,} messages, {rate:,.0f} a second")
        return Replayed(messages, len(left))

    def _plan(self, spark: SparkSession, folder: Folder) -> tuple[list[list[QueueRange]], str]:
        """The ranges of every part, as fixed by the first run under this name; and the plan's id."""
        path = f"_replays/{self.name}.json"
        about = {
            "topic": self.topic,
            "into": self.into,
            "since": _text(self.since),
            "until": _text(self.until),
            "origin_property": self.origin_property,
        }
        kept = folder.read_note(path)
        if kept is None:
            start, end = self._bounds(spark, folder)
            made = _parts(start, end, self.messages_per_part, _holes(folder.pieces(self.topic)))
            if not made:
                msg = f"the archive {self.folder} has no messages of {self.topic!r} in this time"
                raise ConfigurationError(msg, field="since")
            ranges = [[[each.queue, each.start, each.end] for each in part] for part in made]
            folder.note(path, json.dumps(about | {"id": new_id(), "parts": ranges}).encode())
            # Two concurrent first runs both continue with the plan that was kept.
            kept = folder.read_note(path) or b""
        plan = json.loads(kept)
        if differing := [name for name, value in about.items() if plan[name] != value]:
            name = differing[0]
            msg = f"the replay {self.name!r} was begun with another {name}: {plan[name]!r}; take another name"
            raise ConfigurationError(msg, field=name)
        return [[QueueRange(self.topic, *each) for each in part] for part in plan["parts"]], plan["id"]

    def _bounds(self, spark: SparkSession, folder: Folder) -> tuple[Offsets, Offsets]:
        """First and last offsets of the messages, by queue."""
        files = files_of(folder, self.topic)
        if self.since is None and self.until is None:
            start: Offsets = {}
            end: Offsets = {}
            for each in files:
                start.setdefault(each.piece.place, each.first)
                end[each.piece.place] = each.piece.span.end
            return start, end
        found = (
            frame_of(spark, folder, files)
            .where(self._in_time())
            .groupBy("queue")
            .agg(functions.min("offset").alias("first"), functions.max("offset").alias("last"))
            .collect()
        )
        return (
            {(self.topic, row.queue): row["first"] for row in found},
            {(self.topic, row.queue): row["last"] + 1 for row in found},
        )

    def _in_time(self) -> Column:
        visible_since = functions.col("timestamp")
        condition = visible_since.isNotNull()
        if self.since is not None:
            condition &= visible_since >= functions.lit(self.since)
        if self.until is not None:
            condition &= visible_since < functions.lit(self.until)
        return condition

    def _require(self, pieces: Iterable[Piece], part: Sequence[QueueRange]) -> None:
        """Ensures that the planned messages still exist: a part is written once, whatever its contents."""
        spans = spans_by_queue(pieces)
        for each in part:
            if gone := missing(spans.get((self.topic, each.queue), []), Span(each.start, each.end)):
                msg = (
                    f"offsets {gone[0].first} to {gone[0].end - 1} of queue {each.queue} of {self.topic!r} are in the"
                    " plan, and no longer in the archive; bring the files back"
                )
                raise ConfigurationError(msg, field="folder")

    def _rows(self, spark: SparkSession, folder: Folder, part: Sequence[QueueRange]) -> DataFrame:
        """The sink's rows: the messages of a part, of each queue in order."""
        pieces = folder.pieces(self.topic)
        self._require(pieces, part)
        files = [
            each
            for each in chosen(pieces)
            if any(
                each.piece.queue == range_.queue and each.first < range_.end and range_.start < each.piece.span.end
                for range_ in part
            )
        ]
        queue, offset = functions.col("queue"), functions.col("offset")
        inside = reduce(
            lambda one, other: one | other,
            [(queue == each.queue) & (offset >= each.start) & (offset < each.end) for each in part],
        )
        properties = functions.map_filter("properties", lambda name, _: ~name.startswith(_OF_THE_BROKER))
        if self.origin_property is not None:
            origin = functions.concat_ws("/", "topic", queue, offset)
            properties = functions.map_concat(
                functions.map_filter(properties, lambda name, _: name != self.origin_property),
                functions.create_map(functions.lit(self.origin_property), origin),
            )
        return (
            frame_of(spark, folder, files)
            .where(inside & self._in_time())
            .repartition(len(part), "queue")
            .sortWithinPartitions("queue", "offset")
            .select("value", "keys", "tag", properties.alias("properties"), "message_group", "priority")
        )


def _holes(pieces: Sequence[Piece]) -> dict[Queue, Gaps]:
    """Offsets of which it is recorded that the archive has no messages."""
    files = spans_by_queue(each for each in pieces if each.date)
    noted = spans_by_queue(each for each in pieces if not each.date)
    return {
        place: Gaps(tuple(OffsetGap(*hole) for span in spans for hole in missing(files.get(place, []), span)))
        for place, spans in noted.items()
    }


def _parts(start: Offsets, end: Offsets, messages: int, holes: Mapping[Queue, Gaps]) -> list[list[QueueRange]]:
    """Ranges of the parts; every queue contributes a share to each."""
    parts = []
    at = dict(start)
    while ranges_between(at, end, gaps=holes):
        following = bounded(at, end, messages, holes)
        parts.append(ranges_between(at, following, gaps=holes))
        at = following
    return parts


def _count(part: Sequence[QueueRange]) -> int:
    return sum(each.count for each in part)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
