"""A real broker takes each setting from the command line, the environment and a file, in this order."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from acceptance.client import PATIENCE, Client
from halfmq.v1 import admin_pb2, consumer_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
[broker]
broker_id = "from-file"
lease = 41
queue_count = 7
retention_hours = 5.5
max_body_bytes = 10
"""


async def test_arguments_over_environment_over_file_over_default(tmp_path: Path, sqlite_url: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(FILE)
    variables = {"HALFMQ_LEASE": "42", "HALFMQ_QUEUE_COUNT": "8", "HALFMQ_BROKER_ID": "from-environment"}
    settings = {"config": file, "broker_id": "from-argument", "queue_count": 9}
    with BrokerProcess(sqlite_url, variables, **settings) as broker:
        async with Client(broker.endpoint) as client:
            wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="orders"))
            topic = (await client.call(client.admin.CreateTopic, wanted)).topic
            assert topic.queue_count == 9  # all three say something
            assert topic.retention.ToTimedelta() == timedelta(hours=5.5)  # the file alone
            stream = client.consumer.Consume(timeout=PATIENCE)
            subscribe = consumer_pb2.Subscribe(consumer_group=await client.make_group(), topics=["orders"])
            await stream.write(consumer_pb2.ConsumeRequest(subscribe=subscribe))
            response = await stream.read()
            assert isinstance(response, consumer_pb2.ConsumeResponse)
            assert response.subscribed.broker_id == "from-argument"
            assert response.subscribed.lease_duration.ToTimedelta() == timedelta(seconds=42)  # file and environment
            stream.cancel()
            assert (await client.send("orders", "0123456789")).position.topic == "orders"
            assert (await client.send("orders", "0123456789+")).error.reason == "BODY_TOO_LARGE"
            assert (await client.send("order")).error.reason == "TOPIC_NOT_FOUND"  # nobody switched auto_create on
        assert broker.stop() == 0
    assert broker.count("[error") == 0, broker.log


async def test_a_switch_in_the_environment_and_its_opposite_as_argument(sqlite_url: str) -> None:
    switched_on = {"HALFMQ_AUTO_CREATE": "true"}
    with BrokerProcess(sqlite_url, switched_on) as broker:
        async with Client(broker.endpoint) as client:
            assert (await client.send("orders")).position.topic == "orders"
    with BrokerProcess(sqlite_url, switched_on, auto_create=False) as broker:
        async with Client(broker.endpoint) as client:
            assert (await client.send("order")).error.reason == "TOPIC_NOT_FOUND"
