"""The job that archives topics: all messages that are not in the archive yet."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.options import ReadOptions
from consumer_sdk.spark.source.brokers import Brokers
from consumer_sdk.spark.source.offsets import QueueRange
from consumer_sdk.spark.source.readers import read_range
from consumer_sdk.spark.source.scanning import data_lost
from halfmq_pipeline.archive.folder import Folder
from halfmq_pipeline.archive.layout import Span, cut, merged, missing, note_name, spans_by_queue, topic_note
from halfmq_pipeline.archive.writing import archive_schema, write_range
from halfmq_pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from consumer_sdk.reading import QueueOffset
    from consumer_sdk.spark.bounds import Bound
    from consumer_sdk.spark.source.offsets import Queue
    from halfmq_pipeline.archive.writing import Written

__all__ = ["Archive", "Archived"]


class Archived(NamedTuple):
    """Messages added to an archive; the size in bytes."""

    messages: int
    files: int
    size: int


@dataclass(frozen=True)
class Archive:
    """Settings of the job.

    Attributes:
        folder: Folder of the archive: a path, or a URI that pyarrow supports.
        options: Of the Spark source: endpoint and TLS; one of topic, topics, topicPattern and assign;
            startingOffsets or startingTimestamp for topics that the archive does not have yet, earliest otherwise;
            failOnDataLoss; a group, to report the progress to.
        messages_per_file: A file ends where an offset is a multiple of it, so it has at most so many messages.
        messages_per_round: Approximate number of messages between progress reports.
        say: Called with progress messages, one line each.
    """

    folder: str
    options: Mapping[str, str]
    messages_per_file: int = 250_000
    messages_per_round: int = 2_000_000
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def run(self, spark: SparkSession) -> Archived:
        """Archives the current messages that are not in the archive yet.

        Raises:
            ConfigurationError: A setting is invalid, or the archive is of another topic of this name.
            DataLoss: Messages were deleted before they were archived, unless failOnDataLoss is false.
            HalfmqError: A broker refused, or none answered.
        """
        options = ReadOptions.read(self.options)
        brokers = Brokers(options)
        try:
            return _Run(self, options, brokers, Folder(self.folder)).run(spark)
        finally:
            brokers.close()

    def follow(self, spark: SparkSession, pause: float) -> None:
        """Archives continuously, and waits some seconds when there is nothing new; ends by an error only."""
        while True:
            if not self.run(spark).messages:
                time.sleep(pause)


class _Run:
    """One run: its plan is fixed at the beginning, later messages are not read."""

    def __init__(self, job: Archive, options: ReadOptions, brokers: Brokers, folder: Folder) -> None:
        self._job = job
        self._options = options
        self._brokers = brokers
        self._folder = folder
        started = bool(folder.topics())
        topics = sorted({topic for topic, _ in brokers.queues()})
        if new := [topic for topic in topics if not self._has_begun(topic)]:
            # Topics that match a pattern later are archived completely: they did not exist when the archive was
            # started.
            later = started and options.topic_pattern is not None
            self._begin(new, "earliest" if later else options.start or "earliest")
        kept = spans_by_queue(piece for topic in topics for piece in folder.pieces(topic))
        # Queried last, so that it covers all kept messages.
        queues = {queue: each for queue, each in brokers.queues().items() if queue[0] in topics}
        for topic in topics:
            # These are the queues of the archived topic: its identity was the same before and after.
            self._has_begun(topic)
        self._left = {queue: self._missing(queue, each, kept.get(queue, [])) for queue, each in queues.items()}
        self._ends = {queue: each.max_offset for queue, each in queues.items()}

    def _has_begun(self, topic: str) -> bool:
        """Whether the archive contains a topic.

        Raises:
            ConfigurationError: It contains another one of this name.
        """
        begun = self._folder.read_note(topic_note(topic))
        if begun is not None and begun.decode() != self._brokers.created_at(topic):
            raise _made_anew(topic, f"it was created at {self._brokers.created_at(topic)}, and not {begun.decode()}")
        return begun is not None

    def _begin(self, topics: Iterable[str], start: Bound) -> None:
        """Records the starts of new topics, so that the next run does not determine them again."""
        topics = list(topics)
        created = {topic: self._brokers.created_at(topic) for topic in topics}
        places = self._brokers.place(start, "startingOffsets")
        for topic in topics:
            if self._brokers.created_at(topic) != created[topic]:
                raise _made_anew(topic, "a moment ago")
            for queue, offset in places.items():
                if queue[0] == topic:
                    self._folder.note(note_name("skipped", *queue, Span(0, offset)))
            # The last one: without it the next run starts from the beginning.
            self._folder.note(topic_note(topic), created[topic].encode())

    def _missing(self, queue: Queue, bounds: QueueOffset, kept: Sequence[Span]) -> deque[QueueRange]:
        """The missing ranges of a queue, in pieces of one file each."""
        if kept and kept[-1].end > bounds.max_offset:
            raise _made_anew(queue[0], f"queue {queue[1]} ends at {bounds.max_offset}, and not at {kept[-1].end}")
        if gaps := [span for gap in bounds.gaps.gaps for span in missing(kept, Span(*gap))]:
            # Of messages that a restore of the database undid, some may be archived; they stay.
            for span in gaps:
                self._folder.note(note_name("gap", *queue, span))
            kept = merged([*kept, *gaps])
        self._note_lost(queue, missing(kept, Span(0, bounds.min_offset)))
        absent = missing(kept, Span(bounds.min_offset, bounds.max_offset))
        pieces = [piece for span in absent for piece in cut(span, self._job.messages_per_file)]
        return deque(QueueRange(*queue, *piece, bounds.topic_id) for piece in pieces)

    def _note_lost(self, queue: Queue, spans: Iterable[Span]) -> None:
        for span in spans:
            data_lost(self._options, queue, f"offsets {span.first} to {span.end - 1} were never archived")
            self._folder.note(note_name("lost", *queue, span))
            self._job.say(f"{queue[0]}: offsets {span.first} to {span.end - 1} of queue {queue[1]} are lost")

    def run(self, spark: SparkSession) -> Archived:
        total = sum(piece.count for pieces in self._left.values() for piece in pieces)
        done = Archived(0, 0, 0)
        self._report()
        began = time.monotonic()
        while pieces := self._next_round():
            written = run_tasks(spark, pieces, partial(_archive, self._options, self._folder))
            self._note_what_went(pieces, written)
            self._report()
            done = Archived(
                done.messages + sum(each.rows for each in written),
                done.files + sum(each.files for each in written),
                done.size + sum(each.size for each in written),
            )
            rate = done.messages / (time.monotonic() - began)
            self._job.say(f"{done.messages:,} of {total:,} messages in {done.files:,} files, {rate:,.0f} a second")
        return done

    def _next_round(self) -> list[QueueRange]:
        """The first pieces of each queue in turn, up to the limit."""
        chosen: list[QueueRange] = []
        count = 0
        while count < self._job.messages_per_round and any(self._left.values()):
            for pieces in self._left.values():
                if pieces and count < self._job.messages_per_round:
                    chosen.append(pieces.popleft())
                    count += chosen[-1].count
        return chosen

    def _note_what_went(self, pieces: Sequence[QueueRange], written: Sequence[Written]) -> None:
        """Records messages that retention deleted while they were read."""
        short = [piece for piece, each in zip(pieces, written, strict=True) if each.rows < piece.count]
        for piece in short:
            queue = (piece.topic, piece.queue)
            kept = spans_by_queue(self._folder.pieces(piece.topic)).get(queue, [])
            self._note_lost(queue, missing(kept, Span(piece.start, piece.end)))

    def _report(self) -> None:
        """Reports the group's progress: everything before the first remaining piece."""
        self._brokers.report(
            {queue: pieces[0].start if pieces else self._ends[queue] for queue, pieces in self._left.items()}
        )


def _made_anew(topic: str, how: str) -> ConfigurationError:
    msg = f"the topic {topic!r} was created again; archive it in another folder ({how})"
    return ConfigurationError(msg, field="folder")


def _archive(options: ReadOptions, folder: Folder, piece: QueueRange) -> Written:
    with shown_in_one_line():
        return write_range(folder, piece.topic, piece.queue, read_range(options, archive_schema(), piece))
