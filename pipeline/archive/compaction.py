"""The job that makes few large files of many small ones, and deletes what a longer file holds as well."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from consumer_sdk.errors import HalfmqError
from pipeline.archive.folder import Folder
from pipeline.archive.layout import Span, chosen, file_name
from pipeline.archive.writing import FileSet
from pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from pipeline.archive.layout import Chosen, Piece

__all__ = ["Compacted", "Compaction", "merges"]

_LEFT_BEHIND = timedelta(days=1)


class Compacted(NamedTuple):
    """How many files were read and deleted, and how many were written in their place."""

    before: int
    after: int


@dataclass(frozen=True)
class Compaction:
    """Settings of the job.

    Attributes:
        folder: Where the archive lies.
        topics: Which topics; None: all.
        messages_per_file: Files are merged up to so many messages.
        bytes_per_file: And up to so many bytes.
        say: Called with progress messages, one line each.
    """

    folder: str
    topics: tuple[str, ...] | None = None
    messages_per_file: int = 2_000_000
    bytes_per_file: int = 512 * 1024 * 1024
    say: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def run(self, spark: SparkSession) -> Compacted:
        """Merges the files that follow one another, a task for each new file.

        A kill leaves nothing half done: the new file appears whole, and what it holds is deleted after. Whoever reads
        the folder without ``read_archive`` may see messages twice in between.

        Raises:
            HalfmqError: A file does not hold what its name says; nothing of it is deleted.
        """
        folder = Folder(self.folder)
        total = Compacted(0, 0)
        for topic in folder.topics() if self.topics is None else self.topics:
            pieces = [piece for piece in folder.pieces(topic) if piece.date]
            counting = chosen(pieces)
            needless = {piece.path for piece in pieces} - {each.piece.path for each in counting}
            for path in sorted(needless):
                folder.delete(path)
            groups = merges(counting, self.messages_per_file, self.bytes_per_file)
            run_tasks(spark, groups, partial(_merge, folder))
            done = Compacted(len(needless) + sum(map(len, groups)), len(groups))
            self.say(f"{topic}: {done.before:,} files became {done.after:,}")
            total = Compacted(total.before + done.before, total.after + done.after)
        folder.sweep(_LEFT_BEHIND)
        return total


def merges(files: Iterable[Chosen], most_messages: int, most_bytes: int) -> list[list[Chosen]]:
    """Which files become one: of the same queue and day, one after the other, two at least."""
    groups: list[list[Chosen]] = []
    messages = size = 0
    last: Piece | None = None
    for each in files:
        piece, count = each.piece, each.piece.span.end - each.first
        follows = last is not None and (last.place, last.date, last.span.end) == (piece.place, piece.date, each.first)
        # Two that overlap become one, however large.
        overlaps = each.first > piece.span.first
        fits = messages + count <= most_messages and size + piece.size <= most_bytes
        if not groups or not follows or not (fits or overlaps):
            groups.append([])
            messages = size = 0
        groups[-1].append(each)
        messages += count
        size += piece.size
        last = piece
    return [group for group in groups if len(group) > 1]


def _merge(folder: Folder, group: list[Chosen]) -> None:
    """Writes the messages of some files into one, and deletes them after."""
    first, last = group[0], group[-1]
    topic, queue = first.piece.place
    path = file_name(topic, first.piece.date, queue, Span(first.first, last.piece.span.end))
    # Where it is there already, the task is retried after it was killed.
    if path == first.piece.path or not folder.has(path):
        _write_merged(folder, group)
    for each in group:
        if each.piece.path != path:
            folder.delete(each.piece.path)


def _write_merged(folder: Folder, group: list[Chosen]) -> None:
    first, last = group[0], group[-1]
    merged = FileSet(folder, *first.piece.place)
    try:
        for each in group:
            for rows in _rows(folder, each):
                merged.write(first.piece.date, rows)
        merged.finish()
    finally:
        merged.discard()
    expected = last.piece.span.end - first.first
    if (merged.count, merged.rows) != (1, expected):
        msg = (
            f"{first.piece.path} and what follows should hold {expected} messages without gaps, but held"
            f" {merged.rows} in {merged.count} runs; a file is damaged, and none was deleted"
        )
        raise HalfmqError(msg)


def _rows(folder: Folder, file: Chosen) -> Iterator[pa.RecordBatch]:
    """The rows of a file that count, a row group at a time: those are small, whatever the messages' size."""
    skipped = file.first - file.piece.span.first
    with folder.open(file.piece.path) as source:
        parquet = pq.ParquetFile(source)
        for number in range(parquet.num_row_groups):
            for rows in parquet.iter_batches(row_groups=[number]):
                passed = min(skipped, len(rows))
                skipped -= passed
                if passed < len(rows):
                    yield rows.slice(passed)
