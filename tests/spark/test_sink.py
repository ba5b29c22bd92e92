"""The sink: every row arrives once, whatever happens on the way."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from support.spark import arrived, forget_last_commit, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess

pytestmark = on("mysql")


class Jobs:
    """Numbers on their way through Spark into a topic."""

    def __init__(self, spark: SparkSession, endpoint: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.endpoint = endpoint
        self.topic = topic
        self.source = folder / "source"
        self.checkpoint = folder / "checkpoint"
        self.sink = f"s{uuid.uuid4().hex[:12]}"
        self.source.mkdir()

    def feed(self, numbers: range, files: int = 2) -> None:
        """Gives the stream numbers to read."""
        name = uuid.uuid4().hex
        frame = self.spark.createDataFrame([(str(number),) for number in numbers], "value string").repartition(files)
        frame.write.parquet(str(self.source / name))

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda frame: frame, **options: object) -> list[int]:
        """Writes all that is there; how many rows each micro-batch had."""
        stream = (
            self.spark.readStream.schema("value string").option("recursiveFileLookup", "true").parquet(str(self.source))
        )
        writer = change(stream).writeStream.format("halfmq").option("endpoint", self.endpoint)
        given = {"topic": self.topic, "sinkId": self.sink} | options
        for name, value in given.items():
            writer = writer.option(name, str(value))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


@pytest.fixture
def jobs(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> Jobs:
    """A stream of numbers into a topic."""
    return Jobs(spark, broker.endpoint, topic, tmp_path)


@pytest.fixture
def waiting(admin: Admin, broker: BrokerProcess) -> Iterator[Callable[[], int]]:
    """How many half messages wait in the broker."""
    import grpc

    from halfmq.v1 import admin_pb2, admin_pb2_grpc

    with grpc.insecure_channel(broker.endpoint) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        yield lambda: len(stub.ListTransactions(admin_pb2.ListTransactionsRequest(page_size=1000)).transactions)


def once(numbers: range) -> Counter[int]:
    return Counter(dict.fromkeys(numbers, 1))


def test_every_row_arrives_once(jobs: Jobs, waiting: Callable[[], int]) -> None:
    jobs.feed(range(5000))
    assert sum(jobs.run()) == 5000
    assert arrived(jobs.endpoint, jobs.topic) == once(range(5000))
    assert jobs.run() == []
    jobs.feed(range(5000, 5100))
    jobs.run()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(5100))
    assert waiting() == 0


def test_a_micro_batch_that_is_repeated(jobs: Jobs, waiting: Callable[[], int]) -> None:
    jobs.feed(range(1000))
    jobs.run()
    forget_last_commit(jobs.checkpoint)
    jobs.feed(range(1000, 1200))
    jobs.run()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(1200))
    assert waiting() == 0


def test_a_large_micro_batch_that_is_repeated(jobs: Jobs, waiting: Callable[[], int]) -> None:
    """Its tasks read all their rows, although the broker wants none of them."""
    jobs.feed(range(40_000))
    jobs.run()
    forget_last_commit(jobs.checkpoint)
    jobs.run()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(40_000))
    assert waiting() == 0


def test_tasks_that_fail_are_tried_again(jobs: Jobs, waiting: Callable[[], int], tmp_path: Path) -> None:
    """What they wrote before is dropped."""
    marks = str(tmp_path / "marks")

    def fail_late(iterator: Any) -> Any:
        import os

        yield from iterator
        os.makedirs(marks, exist_ok=True)
        if len(os.listdir(marks)) < 2:
            open(os.path.join(marks, os.urandom(8).hex()), "w").close()
            raise RuntimeError("failed on purpose")

    jobs.feed(range(3000), files=3)
    jobs.run(lambda frame: frame.mapInArrow(fail_late, "value string"))
    assert arrived(jobs.endpoint, jobs.topic) == once(range(3000))
    assert waiting() == 0


def test_a_checkpoint_that_was_deleted(jobs: Jobs, waiting: Callable[[], int]) -> None:
    """Epoch 0 again, of another query: that is no repetition."""
    jobs.feed(range(400))
    jobs.run()
    jobs.checkpoint = jobs.checkpoint.with_name("another")
    with pytest.raises(StreamingQueryException, match="belongs to the query"):
        jobs.run()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(400))
    jobs.run(onCheckpointReset="continue")
    assert arrived(jobs.endpoint, jobs.topic) == Counter(dict.fromkeys(range(400), 2))
    assert waiting() == 0


def test_a_query_that_fails_leaves_nothing(jobs: Jobs, waiting: Callable[[], int]) -> None:
    def break_down(iterator: Any) -> Any:
        for number, batch in enumerate(iterator):
            yield batch
            raise RuntimeError(f"failed for good in batch {number}")

    jobs.feed(range(2000))
    with pytest.raises(StreamingQueryException, match="failed for good"):
        jobs.run(lambda frame: frame.mapInArrow(break_down, "value string"))
    assert arrived(jobs.endpoint, jobs.topic) == Counter()
    assert waiting() == 0
    jobs.run()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(2000))


def test_all_columns(spark: SparkSession, broker: BrokerProcess, topic: str, admin: Admin) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, queues=1, priority_levels=3)
    rows = [
        (b"\x00\xff", topic, ["a", "b"], "paid", {"x": "1"}, "g", None),
        (b"plain", other, None, None, None, None, 2),
    ]
    schema = (
        "value binary, topic string, keys array<string>, tag string, properties map<string,string>,"
        " message_group string, priority int"
    )
    writer = spark.createDataFrame(rows, schema).write.format("halfmq").option("endpoint", broker.endpoint)
    writer.mode("append").save()
    columns = "value binary, keys array<string>, tag string, properties map<string,string>, message_group string,"
    columns += " priority int"
    reader = spark.read.format("halfmq").option("endpoint", broker.endpoint).schema(columns)
    (first,) = reader.option("topic", topic).load().collect()
    (second,) = reader.option("topic", other).load().collect()
    assert (bytes(first.value), first["keys"], first.tag, first.properties, first.message_group) == (
        b"\x00\xff",
        ["a", "b"],
        "paid",
        {"x": "1"},
        "g",
    )
    assert (bytes(second.value), second.tag, second.priority) == (b"plain", None, 2)


def test_a_table_is_written_once(jobs: Jobs, spark: SparkSession, waiting: Callable[[], int]) -> None:
    frame = spark.range(3000).selectExpr("cast(id AS string) AS value", "concat('k', id) AS key").repartition(4)
    for _ in range(2):
        writer = frame.write.format("halfmq").option("endpoint", jobs.endpoint).option("topic", jobs.topic)
        writer.option("writeId", f"{jobs.topic}-1").mode("append").save()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(3000))
    frame.write.format("halfmq").option("endpoint", jobs.endpoint).option("topic", jobs.topic).mode("append").save()
    assert arrived(jobs.endpoint, jobs.topic) == Counter(dict.fromkeys(range(3000), 2))
    assert waiting() == 0


def test_parts_of_a_write_that_are_numbered(jobs: Jobs, spark: SparkSession, waiting: Callable[[], int]) -> None:
    """A part that was written, or that one behind it was written of, does nothing; gaps do no harm."""
    for number, low in ((0, 0), (1, 100), (0, 0), (1, 100), (5, 200), (4, 300), (5, 200), (6, 400)):
        frame = spark.range(low, low + 100).selectExpr("cast(id AS string) AS value")
        writer = frame.write.format("halfmq").options(endpoint=jobs.endpoint, topic=jobs.topic)
        writer.options(writeId=f"{jobs.topic}-parts", writeNumber=number).mode("append").save()
    assert arrived(jobs.endpoint, jobs.topic) == once(range(300)) + once(range(400, 500))
    assert waiting() == 0


@pytest.mark.parametrize(
    ("options", "columns", "mode", "words"),
    [
        ({"sinkid": "x"}, "'a' AS value", "append", "sinkId is for streams"),
        ({"tropic": "x"}, "'a' AS value", "append", "did you mean 'topic'?"),
        ({"writenumber": "1"}, "'a' AS value", "append", "writeNumber is given without a writeId"),
        ({}, "'a' AS value", "append", "name a topic"),
        ({"topic": "t"}, "'a' AS valu", "append", "the column 'valu' cannot be written; did you mean 'value'?"),
        ({"topic": "t"}, "'a' AS key", "append", "there is no column 'value'"),
        ({"topic": "t"}, "1 AS value", "append", "the column 'value' is of type int, not binary or string"),
        ({"topic": "t"}, "'a' AS value", "overwrite", "a topic cannot be overwritten"),
        ({"topic": "no-such-topic"}, "'a' AS value", "append", "no-such-topic"),
        ({"topic": "t"}, "'' AS value", "append", "a row has no value"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], columns: str, mode: str, words: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises((AnalysisException, PySparkException)) as refused:
        frame.write.format("halfmq").option("endpoint", broker.endpoint).options(**options).mode(mode).save()
    assert words in str(refused.value)
