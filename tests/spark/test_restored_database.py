"""A query whose checkpoint is ahead of the restored database of the broker: it is told, and then skips nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from broker.storage.adapters.restoring import tell_of_restore
from broker.storage.engine.connection import Database
from halfmq_pipeline.archive import Archive, read_archive
from halfmq_pipeline.replay import Replay
from producer_sdk import Admin, Message, Producer
from spark.conftest import Queries, numbers
from support.brokers import BrokerProcess
from support.rewinding import Moment

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.in_turns("campaigns of Spark")


def send(broker: BrokerProcess, values: range) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message("orders", f"{value}".encode()) for value in values])


def archive(spark: SparkSession, broker: BrokerProcess, folder: Path) -> int:
    """Archives what is new; how many messages."""
    job = Archive(str(folder), {"endpoint": broker.endpoint, "topic": "orders"}, 5, 15, lambda _: None)
    return job.run(spark).messages


def test_it_goes_on_with_all_that_came_since(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'halfmq.db'}"
    options = {"topic": "orders", "startingOffsets": "earliest"}
    with BrokerProcess(url) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("orders", queues=2)
        send(broker, range(20))
        Queries(spark, broker.endpoint, tmp_path).run(**options)
        assert archive(spark, broker, tmp_path / "archive") == 20
    with closing(Database(url)) as database:
        moment = Moment(database)
        with BrokerProcess(url) as broker:
            send(broker, range(100, 120))
            queries = Queries(spark, broker.endpoint, tmp_path)
            queries.run(**options)
            known = [*range(20), *range(100, 120)]
            assert queries.values() == known
            assert archive(spark, broker, tmp_path / "archive") == 20
        moment.restore()
        tell_of_restore(database, "os:ann")
    with BrokerProcess(url) as broker:
        # As many as the query has read of the time undone: they would have had the same offsets.
        send(broker, range(200, 220))
        queries = Queries(spark, broker.endpoint, tmp_path)
        with pytest.raises(PySparkException, match=r"the database was restored.*goes on at \d+.*failOnDataLoss"):
            queries.run(**options)
        assert queries.values() == known
        queries.run(**options, failOnDataLoss="false")
        assert queries.values() == [*known, *range(200, 220)]
        send(broker, range(300, 305))
        queries.run(**options)
        assert queries.values() == [*known, *range(200, 220), *range(300, 305)]
        # Others go across the gap, however small their micro-batches are.
        there = [*range(20), *range(200, 220), *range(300, 305)]
        anew = queries.anew()
        anew.output = tmp_path / "anew"
        batches = anew.run(**options, maxOffsetsPerTrigger=12)
        assert (anew.values(), len(batches)) == (there, 4)
        table = spark.read.format("halfmq").option("endpoint", broker.endpoint).option("topic", "orders").load()
        assert numbers(table) == there
        # An archive keeps what is gone, and has what came since.
        assert archive(spark, broker, tmp_path / "archive") == 25
        assert archive(spark, broker, tmp_path / "archive") == 0
        assert numbers(read_archive(spark, str(tmp_path / "archive"), "orders")) == [*known, *there[20:]]
        with Admin(broker.endpoint) as admin:
            admin.create_topic("again", queues=1)
        replay = Replay(str(tmp_path / "archive"), "orders", "again", "all", {"endpoint": broker.endpoint})
        assert replace(replay, messages_per_part=25).run(spark).messages == 65
        again = spark.read.format("halfmq").option("endpoint", broker.endpoint).option("topic", "again").load()
        assert numbers(again) == [*known, *there[20:]]
