"""What a query reads, by its options and its filters, in real Spark."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from consumer_sdk.spark import lag_of
from producer_sdk import Producer
from spark.conftest import numbers
from support.spark import on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from producer_sdk import Admin
    from spark.conftest import Queries
    from support.brokers import BrokerProcess

pytestmark = on("mariadb")

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"], ids=["pushed down", "not pushed down"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether Spark offers its filters to the source; it does not by default."""
    assert spark.conf.get(PUSHDOWN) == "false"
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.unset(PUSHDOWN)


@pytest.fixture
def place(broker: BrokerProcess, admin: Admin, topic: str) -> Callable[[range], None]:
    """Sends numbers to the 4 queues in turn: number n is at offset n // 4 of queue n % 4."""
    scratch = f"{topic}-scratch"
    admin.create_topic(scratch)
    group_of: dict[int, str] = {}
    with Producer(broker.endpoint) as producer:
        for number in range(100):
            sent = producer.send(scratch, b"x", message_group=f"g{number}")
            assert sent.queue is not None
            group_of.setdefault(sent.queue, f"g{number}")
    assert sorted(group_of) == [0, 1, 2, 3]

    def placed(numbers: range) -> None:
        with Producer(broker.endpoint) as producer:
            for number in numbers:
                tag = "even" if number % 2 == 0 else "odd"
                producer.send(topic, f"{number}", tag=tag, message_group=group_of[number % 4])

    return placed


@pytest.mark.parametrize(
    ("condition", "passing", "tasks"),
    [
        ("offset >= 3 AND offset < 6", range(12, 24), 4),
        ("queue = 2", range(2, 40, 4), 1),
        ("queue IN (0, 3) AND offset > 8", [36, 39], 2),
        ("offset < 0", [], 1),
        ("topic = 'another'", [], 1),
        ("timestamp < current_timestamp() - INTERVAL 1 DAY", [], 1),
        ("timestamp > current_timestamp() - INTERVAL 1 DAY AND offset = 1", range(4, 8), 4),
        ("tag = 'odd' AND queue < 2", range(1, 40, 4), 2),
        ("tag IN ('odd', 'even') AND NOT offset = 0", range(4, 40), 4),
        ("tag = 'odd' OR offset = 0", sorted({*range(1, 40, 2), 0, 2}), 4),
        ("tag IS NULL", [], 4),
    ],
)
def test_filters_leave_the_same_rows_and_fewer_tasks(
    topic: str,
    place: Callable[[range], None],
    read: Callable[..., DataFrame],
    pushdown: bool,
    condition: str,
    passing: list[int],
    tasks: int,
) -> None:
    place(range(40))
    found = read(topic=topic).where(condition)
    assert numbers(found) == list(passing)
    assert found.rdd.getNumPartitions() == (tasks if pushdown else 4)


def test_assigned_queues_alone_are_read(
    topic: str, place: Callable[[range], None], read: Callable[..., DataFrame], queries: Queries
) -> None:
    place(range(40))
    some = json.dumps({topic: [1, 3]})
    assert numbers(read(assign=some)) == list(range(1, 40, 2))
    starting = json.dumps({topic: {"3": 9}})
    assert numbers(read(assign=some, startingOffsets=starting)) == sorted([*range(1, 40, 4), 39])
    assert sum(each["numInputRows"] for each in queries.run(assign=some, startingOffsets="earliest")) == 20
    assert queries.values() == list(range(1, 40, 2))
    with pytest.raises(StreamingQueryException, match=f"queue 1 of '{topic}' are gone.*it is not assigned any more"):
        queries.run(assign=json.dumps({topic: [3]}))
    with pytest.raises(AnalysisException, match=f"assign names queue 4 of '{topic}', which has 4"):
        read(assign=json.dumps({topic: [0, 4]})).count()
    with pytest.raises(AnalysisException, match=f"startingOffsets names queue 0 of '{topic}', which is not assigned"):
        read(assign=some, startingOffsets=json.dumps({topic: {"0": 1}})).count()


def test_a_time_for_each_queue(topic: str, place: Callable[[range], None], read: Callable[..., DataFrame]) -> None:
    place(range(20))
    time.sleep(0.5)
    middle = datetime.now(UTC)
    time.sleep(0.5)
    place(range(20, 40))
    times = json.dumps({topic: {"0": middle.isoformat(), "1": int(middle.timestamp() * 1000)}})
    late = sorted([*range(20, 40, 4), *range(21, 40, 4)])
    others = [number for number in range(40) if number % 4 > 1]
    assert numbers(read(topic=topic, startingOffsetsByTimestamp=times)) == sorted(late + others)
    early = [number for number in range(20) if number % 4 < 2]
    assert numbers(read(topic=topic, endingOffsetsByTimestamp=times)) == sorted(early + others)
    wrong = json.dumps({topic: {"7": 0}})
    with pytest.raises(AnalysisException, match=f"names queue 7 of '{topic}', which does not exist"):
        read(topic=topic, startingOffsetsByTimestamp=wrong).count()


def test_tasks_have_no_more_records_than_they_may(
    topic: str, place: Callable[[range], None], read: Callable[..., DataFrame]
) -> None:
    place(range(42))
    found = read(topic=topic, maxRecordsPerPartition=4)
    assert numbers(found) == list(range(42))
    assert found.rdd.getNumPartitions() == 12
    assert max(len(part) for part in found.rdd.glom().collect()) <= 4
    assert read(topic=topic, maxRecordsPerPartition=4, minPartitions=20).rdd.getNumPartitions() >= 20


def test_a_micro_batch_waits_for_messages_but_not_forever(
    topic: str, broker: BrokerProcess, spark: SparkSession, tmp_path: Path, send: Callable[..., None]
) -> None:
    """The first one does not wait; `lag_of` tells what waits."""

    def stream(least: int, delay: str, folder: Path) -> list[int]:
        counts: list[int] = []
        source = spark.readStream.format("halfmq").options(
            endpoint=broker.endpoint,
            topic=topic,
            startingOffsets="earliest",
            minOffsetsPerTrigger=str(least),
            maxTriggerDelay=delay,
        )
        query = (
            source.load()
            .writeStream.option("checkpointLocation", str(folder))
            .foreachBatch(lambda frame, _: counts.append(frame.count()))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            wait_for(lambda: counts == [8])
            send(topic, range(8, 13))
            wait_for(lambda: lag_of(query.lastProgress).total == 5 or len(counts) > 1)
            if delay == "1h":
                time.sleep(1)
                assert counts == [8]
                send(topic, range(13, 15))
            wait_for(lambda: len(counts) > 1)
            wait_for(lambda: lag_of(query.lastProgress).total == 0)
        finally:
            query.stop()
        return counts

    send(topic, range(8))
    assert stream(7, "1h", tmp_path / "waits") == [8, 7]


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits up to a minute."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
