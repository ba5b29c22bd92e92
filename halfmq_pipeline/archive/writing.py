"""A task of the archive: reads a range of a queue, and writes it as files, one per day."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from consumer_sdk.spark.source.columns import COLUMNS
from halfmq_pipeline.archive.layout import Span, file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfmq_pipeline.archive.folder import Folder

__all__ = ["FileSet", "Written", "archive_schema", "write_range"]

_ROWS_AT_A_TIME = 65_536
_BYTES_AT_A_TIME = 32 * 1024 * 1024
# The topic is the folder's name.
_COLUMNS = [name for name in COLUMNS if name != "topic"]


class Written(NamedTuple):
    """The result of a task."""

    files: int
    rows: int
    size: int


def archive_schema() -> StructType:
    """The columns of the files: all fields of messages except the topic."""
    schema = StructType()
    for name in _COLUMNS:
        schema.add(name, COLUMNS[name].type)
    return schema


def write_range(folder: Folder, topic: str, queue: int, batches: Iterable[pa.RecordBatch]) -> Written:
    """Writes messages of a queue, in the order of their offsets, as files of one day each."""
    files = FileSet(folder, topic, queue)
    try:
        for batch in batches:
            for date, part in _days(batch):
                files.write(date, part)
        files.finish()
    finally:
        files.discard()
    return Written(files.count, files.rows, files.size)


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Runs of rows that became visible on the same day (UTC)."""
    days = pc.run_end_encode(pc.floor_temporal(batch.column("timestamp"), unit="day").cast(pa.int64()))
    start = 0
    for end, day in zip(days.run_ends.to_pylist(), days.values.to_pylist(), strict=True):
        yield datetime.fromtimestamp(day / 1_000_000, UTC).date().isoformat(), batch.slice(start, end - start)
        start = end


@dataclass
class FileSet:
    """Writes rows of a queue to consecutive files: a new day, or a gap in the offsets, starts another one.

    Attributes:
        count, rows, size: Totals of finished files; the size in bytes.
    """

    folder: Folder
    topic: str
    queue: int
    count: int = 0
    rows: int = 0
    size: int = 0
    _open: _OpenFile | None = field(default=None, repr=False)

    def write(self, date: str, rows: pa.RecordBatch) -> None:
        """Appends rows, splitting them at gaps between their offsets."""
        for part in _without_gaps(rows):
            first = part.column("offset")[0].as_py()
            if self._open is not None and (self._open.date != date or self._open.span.end != first):
                self.finish()
            if self._open is None:
                self._open = _OpenFile(self.folder, date, first, part.schema)
            self._open.write(part)

    def finish(self) -> None:
        """Finishes the open file."""
        if self._open is not None:
            opened = self._open
            self.size += opened.finish(file_name(self.topic, opened.date, self.queue, opened.span))
            self._open = None
            self.rows += opened.span.end - opened.span.first
            self.count += 1

    def discard(self) -> None:
        """Discards the open file."""
        if self._open is not None:
            self._open.discard()
            self._open = None


def _without_gaps(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    offsets = rows.column("offset")
    if offsets[-1].as_py() - offsets[0].as_py() == len(rows) - 1:
        yield rows
        return
    steps = pc.pairwise_diff(offsets)
    start = 0
    for end in [*pc.indices_nonzero(pc.greater(steps, 1)).to_pylist(), len(rows)]:
        yield rows.slice(start, end - start)
        start = end


class _OpenFile:
    """A file that is being written, some row groups at a time."""

    def __init__(self, folder: Folder, date: str, first: int, schema: pa.Schema) -> None:
        self.date = date
        self.span = Span(first, first)
        self._unfinished = folder.create()
        self._writer = pq.ParquetWriter(self._unfinished.stream, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self.span = Span(self.span.first, self.span.end + len(rows))
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= _ROWS_AT_A_TIME or self._waiting_bytes >= _BYTES_AT_A_TIME:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting = []
            self._waiting_rows = self._waiting_bytes = 0

    def finish(self, path: str) -> int:
        self._flush()
        self._writer.close()
        return self._unfinished.finish(path)

    def discard(self) -> None:
        self._unfinished.discard()
