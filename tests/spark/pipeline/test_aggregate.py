"""Aggregates: the windows of a topic, equal to those that pandas makes, whatever happened on the way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from consumer_sdk import QueueReader
from consumer_sdk.errors import ConfigurationError, HalfmqError
from halfmq_pipeline.aggregate import Aggregate
from producer_sdk import Message, Producer
from support.spark import forget_last_commit, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from producer_sdk import Admin
    from support.brokers import BrokerProcess

BEGIN = pd.Timestamp("2026-01-01T00:00:00Z")


@pytest.fixture
def job(broker: BrokerProcess, topic: str, admin: Admin, tmp_path: Path) -> Aggregate:
    admin.create_topic(f"{topic}-figures")
    return Aggregate(
        options={"endpoint": broker.endpoint},
        topic=topic,
        into=f"{topic}-figures",
        name=f"{topic}-figures",
        checkpoint=str(tmp_path / "checkpoint"),
        columns="kind string, amount long, at timestamp",
        time="at",
        window="1 hour",
        group_by=("kind",),
        figures=("count(*) AS sales", "sum(amount) AS total"),
        max_offsets_per_trigger=300,
    )


@pytest.fixture
def sell(broker: BrokerProcess, topic: str) -> Callable[[range], None]:
    """Sends sales, one a minute."""

    def send(minutes: range) -> None:
        with Producer(broker.endpoint) as producer:
            for start in minutes[::30]:
                some = range(start, min(start + 30, minutes.stop))
                producer.send_many([Message(topic, json.dumps(sale(minute))) for minute in some])

    return send


def sale(minute: int) -> dict[str, Any]:
    at = BEGIN + pd.Timedelta(minutes=minute)
    return {"kind": "ab"[minute % 2], "amount": minute * minute % 97, "at": at.isoformat()}


def expected(minutes: range) -> dict[str, dict[str, Any]]:
    """What pandas makes of the same sales, by key."""
    frame = pd.DataFrame([sale(minute) for minute in minutes])
    frame["start"] = pd.to_datetime(frame["at"]).dt.floor("h")
    sums = frame.groupby(["kind", "start"]).agg(sales=("amount", "size"), total=("amount", "sum")).reset_index()
    return {
        f"{row.kind}|{row.start:%Y-%m-%dT%H:%M:%SZ}": {
            "window_start": f"{row.start:%Y-%m-%dT%H:%M:%SZ}",
            "window_end": f"{row.start + pd.Timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
            "kind": row.kind,
            "sales": row.sales,
            "total": row.total,
        }
        for row in sums.itertuples()
    }


def written(endpoint: str, topic: str) -> dict[str, list[dict[str, Any]]]:
    """What the topic holds, by key, the oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    with QueueReader(endpoint) as reader:
        for queue in reader.queue_offsets(topic):
            for message in reader.read_queue(topic, queue.queue, 0, 10_000).messages:
                found.setdefault(message.keys[0], []).append(json.loads(message.text))
    return found


def test_windows_are_written_once_when_they_are_complete(
    job: Aggregate, spark: SparkSession, broker: BrokerProcess, sell: Callable[[range], None]
) -> None:
    sell(range(700))
    lines: list[str] = []
    # Queues are read side by side, whatever their messages' times.
    job = replace(job, watermark="4 hours", say=lines.append)
    assert job.run(spark) == (700, 3, False)
    assert [line.split(",")[0] for line in lines] == [
        "micro-batch 0: 300 messages",
        "micro-batch 1: 300 messages",
        "micro-batch 2: 100 messages",
    ]
    assert lines[-1].endswith("lag 0")
    # The last micro-batch again, as after a kill.
    forget_last_commit(Path(job.checkpoint))
    sell(range(700, 1000))
    job.run(spark)
    # Windows that end before the watermark are complete.
    complete = range((999 - 4 * 60) // 60 * 60)
    assert written(broker.endpoint, job.into) == {key: [row] for key, row in expected(complete).items()}


def test_windows_are_written_whenever_they_change(
    job: Aggregate, spark: SparkSession, broker: BrokerProcess, sell: Callable[[range], None]
) -> None:
    updating = replace(job, mode="update")
    sell(range(450))
    updating.run(spark)
    sell(range(450, 500))
    updating.run(spark)
    found = written(broker.endpoint, job.into)
    assert {key: rows[-1] for key, rows in found.items()} == expected(range(500))
    assert all([row["sales"] for row in rows] == sorted({row["sales"] for row in rows}) for rows in found.values())


def test_it_goes_on_and_names_groups_of_any_kind(
    job: Aggregate, spark: SparkSession, broker: BrokerProcess, topic: str
) -> None:
    kinds = ["a|b", "", None, "two\nlines", "東" * 40]
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, json.dumps({**sale(1), "kind": kind})) for kind in kinds])
    following = ThreadPoolExecutor(1).submit(replace(job, mode="update").run, spark, 0.2)

    def counted() -> int:
        return sum(each["numInputRows"] for query in spark.streams.active for each in query.recentProgress)

    # What is written is in the topic a moment before Spark counts it.
    until(lambda: following.done() or counted() == len(kinds))
    for query in spark.streams.active:
        query.stop()
    assert following.result(60).messages == len(kinds)
    found = written(broker.endpoint, job.into)
    assert {rows[0]["kind"] for rows in found.values()} == set(kinds)
    start = "2026-01-01T00:00:00Z"
    assert {f"a%7Cb|{start}", f"|{start}", f"%null|{start}", f"two%0Alines|{start}"} < set(found)


def test_messages_that_cannot_be_read(
    job: Aggregate, spark: SparkSession, broker: BrokerProcess, sell: Callable[[range], None], topic: str
) -> None:
    sell(range(100))
    with Producer(broker.endpoint) as producer:
        producer.send(topic, "no JSON")
        producer.send(topic, '{"kind": "a", "amount": 1}')
    with pytest.raises(HalfmqError, match=rf"the message at {topic}/\d/\d+ is no JSON object"):
        job.run(spark)
    skipping = replace(job, skip_malformed=True, mode="update", checkpoint=f"{job.checkpoint}-2", name=f"{topic}-2")
    skipping.run(spark)
    assert {key: rows[-1] for key, rows in written(broker.endpoint, job.into).items()} == expected(range(100))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"time": "no_such"}, "no_such"),
        ({"columns": "a strin"}, "strin"),
        ({"window": "soon"}, "soon"),
        ({"into": "not-there-%"}, "not-there"),
    ],
)
def test_what_cannot_be(job: Aggregate, spark: SparkSession, change: dict[str, str], words: str) -> None:
    with pytest.raises((ConfigurationError, HalfmqError), match=words):
        replace(job, **change).run(spark)
