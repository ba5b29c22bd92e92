"""What an official RocketMQ client sends is read by Spark, and what Spark writes is received by that client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from producer_sdk import Admin
from support.brokers import BrokerProcess
from support.rocketmq import OfficialClient

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.in_turns("campaigns of Spark")

COUNT = 40


def test_rocketmq_and_spark_read_each_other(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'halfmq.db'}"
    with BrokerProcess(url, rocketmq=True) as broker, OfficialClient(tmp_path) as python:
        endpoint = broker.endpoint
        with Admin(endpoint) as admin:
            admin.create_topic("sent")
            admin.create_topic("written")
            admin.create_group("readers")
        producer = python.producer(endpoint, "sent", checker=lambda _: "UNKNOWN")
        receipts = producer.send_many("sent", [f"{n}" for n in range(COUNT)], tag="a", properties={"x": "1"})
        for verdict in ("commit", "rollback"):
            half = producer.send_in_transaction("sent", verdict, tag="b")
            getattr(half, verdict)()

        columns = "value binary, tag string, properties map<string,string>, message_id string"
        source = spark.read.format("halfmq").options(endpoint=endpoint, topic="sent").schema(columns)
        rows = {row.value.decode(): row for row in source.load().collect()}
        assert set(rows) == {*map(str, range(COUNT)), "commit"}
        assert (rows["commit"].tag, rows["7"].tag, rows["7"].properties["x"]) == ("b", "a", "1")
        # The client's name of a message is `01` and the digits of its id.
        assert {f"01{row.message_id.replace('-', '').upper()}" for row in rows.values()} >= {
            receipt.message_id for receipt in receipts
        }

        frame = source.load().selectExpr("concat('from Spark ', CAST(value AS STRING)) AS value", "tag")
        frame.write.format("halfmq").options(endpoint=endpoint, topic="written").mode("append").save()
        consumer = python.simple_consumer(endpoint, "readers", {"written": "sql: TAGS = 'b' OR TAGS = 'a'"})
        received = consumer.receive_all(COUNT + 1)
        assert {(each.text, each.tag) for each in received} == {
            (f"from Spark {text}", row.tag) for text, row in rows.items()
        }
        assert not any(each.corrupted for each in received)
