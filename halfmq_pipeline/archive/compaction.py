"""The job that merges many small files into few large ones, and deletes files covered by longer ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from consumer_sdk.errors import HalfmqError
from halfmq_pipeline.archive.folder import Folder
from halfmq_pipeline.archive.layout import Span, chosen, file_name
from halfmq_pipeline.archive.writing import FileSet
from halfmq_pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from halfmq_pipeline.archive.layout import Chosen, Piece

__all__ = ["Compacted", "Compaction", "merges"]

_LEFT_BEHIND = timedelta(days=1)


class Compacted(NamedTuple):
    """Numbers of deleted and of new files."""

    before: int
    after: int


@dataclass(frozen=True)
class Compaction:
    """Settings of the job.

    Attributes:
        folder: Folder of the archive.
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
        """Merges consecutive files, with a task per new file.

        It is crash-safe: the new file appears atomically, and the merged files are deleted after. Readers of the folder
        without ``read_archive`` may see messages twice in between.

        Raises:
            HalfmqError: A file's contents do not match its name; it is not deleted.
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
    """Groups of files to merge: consecutive ones of the same queue and day, at least two."""
    groups: list[list[Chosen]] = []
    messages = size = 0
    last: Piece | None = None
    for each in files:
        piece, count = each.piece, each.piece.span.end - each.first
        follows = last is not None and (last.place, last.date, last.span.end) == (piece.place, piece.date, each.first)
        # Overlapping ones are merged, whatever the size.
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
    """Writes the messages of some files into one, and deletes the files after."""
    first, last = group[0], group[-1]
    topic, queue = first.piece.place
    path = file_name(topic, first.piece.date, queue, Span(first.first, last.piece.span.end))
    # It exists already if the task is retried after it was killed.
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
    """The effective rows of a file, a row group at a time: those are small, whatever the messages' size."""
    skipped = file.first - file.piece.span.first
    with folder.open(file.piece.path) as source:
        parquet = pq.ParquetFile(source)
        for number in range(parquet.num_row_groups):
            for rows in parquet.iter_batches(row_groups=[number]):
                passed = min(skipped, len(rows))
                skipped -= passed
                if passed < len(rows):
                    yield rows.slice(passed)
