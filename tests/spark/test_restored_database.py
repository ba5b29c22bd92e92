"""A query whose checkpoint is ahead of the restored database of the broker: it is told, and then skips nothing."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from broker.storage.adapters.restoring import tell_of_restore
from broker.storage.engine.connection import Database
from producer_sdk import Admin, Message, Producer
from spark.conftest import Queries, numbers
from support.brokers import BrokerProcess
from support.rewinding import Moment

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def send(broker: BrokerProcess, values: range) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message("orders", f"{value}".encode()) for value in values])


def test_it_goes_on_with_all_that_came_since(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'halfmq.db'}"
    options = {"topic": "orders", "startingOffsets": "earliest"}
    with BrokerProcess(url) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("orders", queues=2)
        send(broker, range(20))
        Queries(spark, broker.endpoint, tmp_path).run(**options)
    with closing(Database(url)) as database:
        moment = Moment(database)
        with BrokerProcess(url) as broker:
            send(broker, range(100, 120))
            queries = Queries(spark, broker.endpoint, tmp_path)
            queries.run(**options)
            known = [*range(20), *range(100, 120)]
            assert queries.values() == known
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
