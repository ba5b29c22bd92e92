"""A driver whose first task is so slow at its first attempt that Spark runs it a second time, beside the first.

Arguments: endpoint, topic to write, folder for the input, the checkpoint and the marks of attempts.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

ROWS = 6000


def two_hosts(folder: str) -> str:
    """Starts a cluster in this driver's JVM and tells its address: Spark runs no two attempts on one host."""
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    gateway: Any = SparkContext._gateway
    deploy, conf, none = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf(), jvm.scala.Option.empty()
    started = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    # It gives an environment, whose address has the port that was free.
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = f"spark://127.0.0.1:{started._1().address().port()}"
    for number in (1, 2):
        host, work = f"127.0.0.{number}", f"{folder}/worker-{number}"
        deploy.worker.Worker.startRpcEnvAndEndpoint(host, 0, 0, 1, 1024, masters, work, none, conf, none)
    return str(masters[0])


def main(endpoint: str, target: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master(two_hosts(folder))
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.3")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.minTaskRuntime", "100ms")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(0, ROWS, 1, 3).selectExpr("string(id) AS value").write.parquet(f"{folder}/input")

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        part, attempt = context.partitionId(), context.attemptNumber()
        yield from batches
        # All rows of the task are behind this, most of them at the broker already.
        mark = Path(folder) / f"part-{part}-attempt-{attempt}"
        mark.touch()
        if part == 0 and attempt == 0:
            other = mark.with_name("part-0-attempt-1")
            deadline = time.monotonic() + 90
            while not other.exists() and time.monotonic() < deadline:
                time.sleep(0.05)

    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 100).parquet(f"{folder}/input")
    writer = rows.mapInArrow(slow, "value string").writeStream.format("halfmq")
    writer = writer.options(endpoint=endpoint, topic=target, sinkId=target, checkpointLocation=f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
