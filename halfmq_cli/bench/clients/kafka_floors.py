"""The floors of a bridge: writing and reading the same records in Kafka, and reading the same messages from halfmq."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from client_core.connection import BackgroundRunner, BrokerLink
from consumer_sdk.reading import queue_offsets
from halfmq_cli.bench.load import body_of, marked
from halfmq_connect.kafka.feed import Feed, QueueAt
from halfmq_connect.outages import Outage

TRANSACTION = 5000
_ID = b"01a1ff2c-ed08-7c93-8eb1-042a7ce93cf1"


def write(kafka: str, **options: Any) -> tuple[int, float]:
    """Writes records as the bridge makes them, with one transactional producer, and nothing else."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"floor-{options['target']}", "linger.ms": 5})
    producer.init_transactions(30)
    rest = body_of(options["size"])
    messages, topic, partitions = options["messages"], options["target"], options["partitions"]
    start = time.perf_counter()
    for first in range(0, messages, TRANSACTION):
        producer.begin_transaction()
        for number in range(first, min(first + TRANSACTION, messages)):
            headers: Any = [
                ("halfmq.message_id", _ID),
                ("halfmq.position", b"bench/0/%d" % number),
                ("halfmq.born_at", b"1795515646120000"),
            ]
            while True:
                try:
                    partition = number // TRANSACTION % partitions
                    producer.produce(topic, marked(number, rest), partition=partition, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction(60)
    return messages, time.perf_counter() - start


def read_kafka(kafka: str, **options: Any) -> tuple[int, float]:
    """Reads what is committed in a topic of Kafka, and drops it."""
    own = {"group.id": options["target"], "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka, **own})
    consumer.assign([TopicPartition(options["target"], number, 0) for number in range(options["partitions"])])
    start, count = time.perf_counter(), 0
    while count < options["messages"]:
        count += sum(record.error() is None for record in consumer.consume(1000, 1.0))
    took = time.perf_counter() - start
    consumer.close()
    return count, took


def read(endpoint: str, **options: Any) -> tuple[int, float]:
    """Reads a topic's messages as the bridge does, and drops them."""
    runner, link = BackgroundRunner("bench"), BrokerLink(endpoint)
    feed = Feed(link, runner, Outage("halfmq"), TRANSACTION, 16 * 1024 * 1024)
    try:
        start, count = time.perf_counter(), 0
        for queue in runner.run(queue_offsets(link, options["topic"], None, None)):
            feed.add(QueueAt(options["topic"], queue.topic_id, queue.queue), 0)
        while count < options["messages"]:
            count += sum(portion.count for portion in feed.take(1.0))
        return count, time.perf_counter() - start
    finally:
        feed.close()
        runner.run(link.close())
        runner.close()
