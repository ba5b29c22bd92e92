"""`halfmq bench spark`."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from contextlib import ExitStack, closing
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.errors import BrokerError, ConfigurationError
from halfmq_cli.bench.databases import settle, side_by_side, with_tables
from halfmq_cli.bench.floor import InsertFloor, RangeFloor
from halfmq_cli.bench.load import TOPIC
from halfmq_cli.bench.options import DatabaseUrl, Json, Size  # noqa: TC001 - typer reads them
from halfmq_cli.bench.processes import BrokerProcess
from halfmq_cli.bench.report import micros_each, print_figures
from halfmq_cli.bench.scenarios.consume import fill
from halfmq_cli.serving import fail
from producer_sdk import Admin, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

OUTPUT = "bench-output"
FILTERED = "bench-filtered"
WARM_UP = 20_000
FLOOR_SECONDS = 3.0
EMPTY_BATCHES = 10
LONGEST_BATCH = 60.0


def spark(
    database: DatabaseUrl = None,
    messages: Annotated[int, typer.Option(min=1000, help="Messages that are read, and written, in a round.")] = 400_000,
    size: Size = 200,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, with the floors between them.")] = 3,
    cores: Annotated[int, typer.Option(min=1, help="Tasks that Spark runs at a time.")] = 2,
    json_output: Json = False,
) -> None:
    """Measure how fast Spark reads a full topic and writes a table, next to plain driver code that does the same.

    Spark runs here, on this machine; what is read goes nowhere, what is written was made before.
    """
    try:
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigurationError("Spark is not installed: pip install 'halfmq[spark]'.", field="spark")
        with ExitStack() as stack:
            (url, floor_url), shown = stack.enter_context(side_by_side(database, 2))
            opened = stack.enter_context(with_tables(url))
            stack.enter_context(with_tables(floor_url))
            broker = stack.enter_context(BrokerProcess(url))
            # Before the first call: gRPC was imported before the SDK could disable its fork support.
            session = _session(cores)
            stack.callback(session.stop)
            with Admin(broker.endpoint) as admin:
                admin.create_topic(TOPIC)
                admin.create_topic(OUTPUT)
            counts = fill(opened, TOPIC, messages, size)
            settle(opened)
            reading = stack.enter_context(closing(RangeFloor(url)))
            writing = stack.enter_context(closing(InsertFloor(floor_url, os.urandom(size))))
            measured = _Measured(broker)
            table = _table(session, messages, size, cores)
            # Warm-up: Python workers start, and code is compiled.
            _read(session, broker.endpoint).limit(WARM_UP).count()
            _write(table.limit(WARM_UP), broker.endpoint)
            reads, writes, read_floors, write_floors = [], [], [], []
            for _ in range(rounds):
                read_floors.append(reading.measure(counts))
                frame = _read(session, broker.endpoint)
                reads.append(measured.rate(messages, lambda frame=frame: _nowhere(frame)))  # type: ignore[misc]
                write_floors.append(writing.measure(FLOOR_SECONDS, 1000))
                writes.append(measured.rate(messages, lambda: _write(table, broker.endpoint)))
            _check_count(session, broker.endpoint, rounds * messages + min(WARM_UP, messages))
            empty, idle = _without_rows(session, broker.endpoint)
    except BrokerError as error:
        fail(error)
    figures: dict[str, Any] = {}
    for name, rates, floors in (("source", reads, read_floors), ("sink", writes, write_floors)):
        rate = len(rates) / sum(1 / each for each, _ in rates)
        floor = sum(floors) / len(floors)
        figures |= {
            f"{name}_rows_per_s": round(rate, 1),
            f"{name}_floor_per_s": round(floor, 1),
            f"{name}_ratio": round(rate / floor, 3),
            f"{name}_broker_cpu_us": micros_each(sum(cpu for _, cpu in rates), messages * len(rates)),
        }
    figures |= {"empty_batch_ms": median(empty), "idle_trigger_ms": median(idle)}
    figures |= {"messages": messages, "rounds": rounds, "cores": cores, "database": shown, "size_bytes": size}
    print_figures("spark", figures, as_json=json_output)


class _Measured:
    """Rate and broker's cost of an operation."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def rate(self, rows: int, work: Callable[[], None]) -> tuple[float, float]:
        """Rows a second, and the broker's processor time in seconds."""
        cpu, start = self._broker.cpu_seconds(), time.perf_counter()
        work()
        return rows / (time.perf_counter() - start), self._broker.cpu_seconds() - cpu


def _session(cores: int) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only this command needs it

    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


def _table(session: SparkSession, rows: int, size: int, parts: int) -> DataFrame:
    table = session.range(0, rows, 1, parts).selectExpr(f"rpad(string(id), {size}, 'x') AS value").cache()
    table.count()
    return table


def _read(session: SparkSession, endpoint: str, topic: str = TOPIC) -> DataFrame:
    return session.read.format("halfmq").option("endpoint", endpoint).option("topic", topic).load()


def _nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _write(frame: DataFrame, endpoint: str) -> None:
    frame.write.format("halfmq").options(endpoint=endpoint, topic=OUTPUT).mode("append").save()


def _without_rows(session: SparkSession, endpoint: str) -> tuple[list[int], list[int]]:
    """Milliseconds of micro-batches without rows from topic to topic, and of triggers without new messages."""
    with Admin(endpoint) as admin:
        admin.create_topic(FILTERED)
    # Triggers without a micro-batch are reported as well, and no progress is dropped.
    session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    stream = session.readStream.format("halfmq").options(endpoint=endpoint, topic=FILTERED, tagFilter="nobody-has-it")
    with tempfile.TemporaryDirectory() as checkpoint, Producer(endpoint) as producer:
        writer = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("halfmq")
        writer = writer.options(endpoint=endpoint, topic=OUTPUT, sinkId=FILTERED, checkpointLocation=checkpoint)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            for batch in range(EMPTY_BATCHES + 1):
                producer.send(FILTERED, "nobody gets this")
                until = time.monotonic() + LONGEST_BATCH
                while (query.lastProgress or {"batchId": 0})["batchId"] <= batch:
                    if time.monotonic() > until:
                        raise BrokerError(f"Micro-batch {batch} did not end.", reason="UNACCOUNTED")
                    time.sleep(0.02)
            told = [each["durationMs"] for each in query.recentProgress]
        finally:
            query.stop()
    # The first micro-batch starts Python's workers.
    empty = [each["triggerExecution"] for each in told if "addBatch" in each][1:]
    return empty, [each["triggerExecution"] for each in told if "addBatch" not in each]


def _check_count(session: SparkSession, endpoint: str, expected: int) -> None:
    count = _read(session, endpoint, OUTPUT).count()
    if count != expected:
        raise BrokerError(f"{expected} rows were written, and {count} are there.", reason="UNACCOUNTED")
