"""A collector of traces that is away, deaf or refuses: messages flow, the log has few lines, and the broker ends."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

from consumer_sdk import Consumer
from producer_sdk import Message, TransactionProducer
from support.brokers import BrokerProcess
from support.otlp import TraceReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Trouble = Literal["away", "deaf", "refusing"]
COUNT = 600
"""Messages: with a span for each half and each delivery ten times what may wait to be sent."""
FEW = {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50", "OTEL_BSP_SCHEDULE_DELAY": "100"}


@contextmanager
def troubled(kind: Trouble) -> Iterator[str]:
    """The endpoint of such a collector."""
    if kind == "refusing":
        with TraceReceiver() as receiver:
            receiver.refuses = True
            yield receiver.endpoint
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == "deaf":
            taken.listen()
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def traced(number: int) -> Message:
    return Message("orders", str(number), properties={"traceparent": f"00-{number + 1:032x}-{1:016x}-01"})


def flow(broker: BrokerProcess) -> list[int]:
    """Commits messages in transactions, and receives them."""
    with TransactionProducer(broker.endpoint, "shop") as producer:
        for first in range(0, COUNT, 20):
            with producer.transaction() as tx:
                tx.send_many([traced(number) for number in range(first, first + 20)])
    got: list[int] = []
    with Consumer(broker.endpoint, "readers", "orders", start="earliest") as consumer:
        while len(got) < COUNT:
            messages = consumer.receive(100, timeout=30)
            assert messages, got
            consumer.ack(messages)
            got += [int(message.text) for message in messages]
    return sorted(got)


@pytest.mark.parametrize("kind", ["away", "deaf", "refusing"])
def test_messages_flow_and_the_log_has_a_line_of_each_kind(kind: Trouble, tmp_path: Path) -> None:
    with troubled(kind) as endpoint:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **FEW}
        with BrokerProcess(
            f"sqlite:///{tmp_path / 'halfmq.db'}", variables, traces=True, auto_create=True, auto_create_groups=True
        ) as broker:
            assert flow(broker) == list(range(COUNT))
            broker.await_log("Queue full, dropping Span")
            assert broker.stop() == 0
            of_kind = [broker.count(text) for text in ("Queue full", "Transient error", "Failed to export")]
            # The first of each, and how many more there were.
            assert max(of_kind) <= 2, broker.log
            assert broker.count("[error") == broker.count("[error", "Failed to export"), broker.log


def test_spans_come_again_once_the_collector_takes_them(tmp_path: Path) -> None:
    with TraceReceiver() as receiver:
        receiver.refuses = True
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, **FEW}
        with BrokerProcess(
            f"sqlite:///{tmp_path / 'halfmq.db'}", variables, traces=True, auto_create=True, auto_create_groups=True
        ) as broker:
            flow(broker)
            broker.await_log("Transient error")
            assert receiver.spans == []
            receiver.refuses = False
            # What waited is sent.
            receiver.until(lambda spans: any(each.name == "deliver orders" for each in spans))
