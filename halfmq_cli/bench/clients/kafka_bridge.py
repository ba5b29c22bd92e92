"""A bridge to Kafka, in a process of its own, and what it is compared with."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from halfmq_cli.bench.clients.conversation import answer, next_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfmq_connect.kafka import KafkaBridge, KafkaSource

POLL = 0.005


async def work(endpoint: str, kafka: str) -> None:
    """Answers requests, ``{"do": "carry" | "bring" | "read" | "write" | "read_kafka", ...}``.

    The answer is ``{"records", "seconds", "cpu_s"}``.
    """
    from halfmq_cli.bench.clients import kafka_floors  # noqa: PLC0415 - its library is not always there

    doing: dict[str, Callable[..., tuple[int, float]]] = {
        "carry": lambda **options: _carry(endpoint, kafka, **options),
        "read": lambda **options: kafka_floors.read(endpoint, **options),
        "bring": lambda **options: _bring(endpoint, kafka, **options),
        "read_kafka": lambda **options: kafka_floors.read_kafka(kafka, **options),
        "write": lambda **options: kafka_floors.write(kafka, **options),
    }
    answer("ready")
    while (request := await next_request()) is not None:
        cpu = time.process_time()
        records, seconds = await asyncio.to_thread(doing[request.pop("do")], **request)
        answer({"records": records, "seconds": seconds, "cpu_s": time.process_time() - cpu})


def _carry(endpoint: str, kafka: str, **options: Any) -> tuple[int, float]:
    """Carries a topic with so many messages; counts from the first of several transactions on, without the start."""
    from halfmq_connect.kafka import KafkaBridge  # noqa: PLC0415

    bridge = KafkaBridge(endpoint, kafka, {options["topic"]: options["target"]}, name=options["target"])
    return _counted(bridge, options["messages"])


def _bring(endpoint: str, kafka: str, **options: Any) -> tuple[int, float]:
    """The way back: a topic of Kafka to one of halfmq."""
    from halfmq_connect.kafka import KafkaSource  # noqa: PLC0415

    source = KafkaSource(endpoint, kafka, {options["target"]: options["topic"]}, name=options["target"])
    return _counted(source, options["messages"])


def _counted(bridge: KafkaBridge | KafkaSource, messages: int) -> tuple[int, float]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            bridge.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    first, began = 0, time.perf_counter()
    thread.start()
    try:
        while bridge.carried < messages and not failed:
            if not first and 0 < bridge.carried < messages:
                first, began = bridge.carried, time.perf_counter()
            time.sleep(POLL)
        ended = time.perf_counter()
    finally:
        bridge.stop()
        thread.join()
    if failed:
        raise failed[0]
    return bridge.carried - first, ended - began
