"""A consumer of Kafka that follows a bridge."""

from __future__ import annotations

import asyncio
import time

from halfmq_cli.bench.clients.conversation import QUIET, answer, missing, next_request
from halfmq_cli.bench.load import mark_of


async def follow(endpoint: str, *, kafka: str, topic: str) -> None:
    """Receives what is committed; answers when it has received as many records as each request says."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - its library is not always there

    own = {"group.id": topic, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": kafka, "fetch.wait.max.ms": 10, "enable.auto.commit": False, **own})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    answer("ready")
    seen = 0
    latencies: list[float] = []
    told = asyncio.create_task(next_request())
    heard = time.monotonic()
    # All the time, not only when asked: a message is there when it can be received.
    while True:
        records = [each for each in await asyncio.to_thread(consumer.consume, 500, 0.01) if each.error() is None]
        now = time.monotonic_ns()
        latencies += [(now - mark_of(record.value() or b"")) / 1e6 for record in records]
        seen += len(records)
        if records or not told.done():
            heard = time.monotonic()
        if not told.done():
            continue
        wanted = told.result()
        if wanted is None:
            break
        if seen >= wanted:
            answer({"consumed": seen, "latency_ms": latencies})
            latencies = []
            told = asyncio.create_task(next_request())
        elif time.monotonic() - heard > QUIET:
            raise missing(wanted - seen)
    consumer.close()
