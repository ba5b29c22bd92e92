"""The writers of the data source: tasks write half messages, the driver commits them all at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from consumer_sdk.errors import HalfmqError
from consumer_sdk.spark.failures import shown_in_one_line
from consumer_sdk.spark.sink.writing import Epochs, Rows, WrittenAttempt

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from consumer_sdk.spark.options import WriteOptions
    from halfmq.v1.message_pb2 import Message

__all__ = ["BatchWriter", "StreamWriter"]


@dataclass
class _Written(WriterCommitMessage):
    """A task's message to the driver."""

    attempt: WrittenAttempt


def _epochs(options: WriteOptions) -> Epochs:
    return Epochs(options.connection, options.sink, take_over=options.take_over)


def _messages(rows: Rows, iterator: Iterator[pa.RecordBatch]) -> Iterator[Message]:
    for batch in iterator:
        yield from rows.messages(batch)


def _of_task(name: str) -> str:
    context = TaskContext.get()
    value = context.getLocalProperty(name) if context is not None else None
    if value is None:
        raise RuntimeError(f"Spark did not say {name}; this runs in tasks of streaming queries only")
    return value


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each exactly once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Reads the settings; nothing is connected yet."""
        self._options = options
        self._schema = schema

    @shown_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stores the rows of a task as half messages, under a name unique to this attempt."""
        rows = Rows(self._schema, self._options.topic)
        number = int(_of_task("streaming.sql.batchId"))
        written = _epochs(self._options).write(_of_task("sql.streaming.queryId"), number, _messages(rows, iterator))
        return _Written(written)

    @shown_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Releases the micro-batch; repeated if Spark has no record of it."""
        attempts = [message.attempt for message in messages if isinstance(message, _Written)]
        if attempts:
            _epochs(self._options).commit(attempts[0].query_id, batchId, attempts)

    @shown_in_one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Drops the micro-batch; Spark also calls this for a committed one, which then stays."""
        known = [message.attempt.query_id for message in messages if isinstance(message, _Written)]
        _epochs(self._options).abort(known[0] if known else "", batchId)


class BatchWriter(DataSourceArrowWriter):
    """Writes a table: all of it, or nothing; once per writeId and writeNumber, if set."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Reads the settings; nothing is connected yet."""
        self._options = options
        self._schema = schema

    @shown_in_one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stores the rows of a task as half messages."""
        rows = Rows(self._schema, self._options.topic)
        options = self._options
        return _Written(_epochs(options).write(options.query_id, options.number, _messages(rows, iterator)))

    @shown_in_one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Releases all rows."""
        attempts = [message.attempt for message in messages if isinstance(message, _Written)]
        _epochs(self._options).commit(self._options.query_id, self._options.number, attempts)
        self._forget()

    @shown_in_one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drops all rows."""
        _epochs(self._options).abort(self._options.query_id, self._options.number)
        self._forget()

    def _forget(self) -> None:
        if not self._options.repeatable:
            # The commit is final: a failure from here on must not look like a failure of the write.
            with suppress(HalfmqError):
                _epochs(self._options).forget()
