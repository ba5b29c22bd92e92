"""A consumer of Kafka that follows a bridge."""

from __future__ import annotations

import asyncio
import time
from typing import Any

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

    def receive(wanted: int) -> dict[str, Any]:
        nonlocal seen, latencies
        heard = time.monotonic()
        while seen < wanted:
            records = consumer.consume(500, 0.01)
            now = time.monotonic_ns()
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > QUIET:
                raise missing(wanted - seen)
            latencies += [(now - mark_of(record.value() or b"")) / 1e6 for record in records if record.error() is None]
            seen += sum(record.error() is None for record in records)
        received, latencies = latencies, []
        return {"consumed": seen, "latency_ms": received}

    while (wanted := await next_request()) is not None:
        answer(await asyncio.to_thread(receive, wanted))
    consumer.close()
