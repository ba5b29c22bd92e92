"""A driver that copies a topic to another one, and kills all its processes at a step of a micro-batch.

Arguments: endpoint, topic to read, topic to write, checkpoint, step.
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from consumer_sdk.spark import HalfmqDataSource
from consumer_sdk.spark.sink.writers import StreamWriter

AT = 1
"""The micro-batch that is not survived."""


def die() -> None:
    """Kills driver and JVM first: nobody notes anything any more; then this worker."""
    os.killpg(int(os.environ["DRIVER"]), signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


class DyingWriter(StreamWriter):
    """Dies at the step that the environment names."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        written = super().write(iterator)
        if self._at("writing") and written.attempt.messages:  # type: ignore[attr-defined]
            die()
        if self._at("aborting", "aborted"):
            raise RuntimeError("failed on purpose")
        return written

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._die("written", batchId)
        super().commit(messages, batchId)
        self._die("committed", batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._die("aborting", batchId)
        super().abort(messages, batchId)
        self._die("aborted", batchId)

    def _die(self, step: str, batch: int) -> None:
        if batch == AT and os.environ["STEP"] == step:
            die()

    @staticmethod
    def _at(*steps: str) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return context.getLocalProperty("streaming.sql.batchId") == str(AT) and os.environ["STEP"] in steps


class DyingSink(HalfmqDataSource):
    """The sink with a writer that dies."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        made = super().streamWriter(schema, overwrite)
        return DyingWriter(made._options, made._schema)


def main(endpoint: str, source: str, target: str, checkpoint: str, step: str) -> None:
    os.environ |= {"DRIVER": str(os.getpgid(0)), "STEP": step}
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DyingSink)
    rows = spark.readStream.format("halfmq").options(endpoint=endpoint, topic=source, startingOffsets="earliest")
    writer = rows.option("maxOffsetsPerTrigger", 200).load().select("value").writeStream.format("dying")
    writer = writer.options(endpoint=endpoint, topic=target, sinkId=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
