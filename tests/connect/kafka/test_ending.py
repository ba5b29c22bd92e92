"""The way back ends soon, also while an answer does not come; each record is there once all the same."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient

from client_core.connection import Connection, RetryConfig
from consumer_sdk import QueueReader
from halfmq_connect.kafka import source as source_module
from halfmq_connect.kafka.epochs import PartitionSink
from support.kafka import new_topic, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers import BrokerProcess


def carried_after_a_restart(
    kafka: str, broker: BrokerProcess, topic: str, source: str, from_kafka: Callable[..., Any]
) -> list[str]:
    """The texts of all messages, once another one, that is sent last, is there."""
    produced(kafka, source, "last")
    found: list[str] = []
    with from_kafka({source: topic}), QueueReader(broker.endpoint) as reader:

        def all_of_them() -> list[str]:
            found[:] = [
                message.text
                for queue in reader.queue_offsets(topic)
                for message in reader.read_queue(topic, queue.queue, 0, 100).messages
            ]
            return found

        wait_until(lambda: "last" in all_of_them())
    return sorted(found)


def produced(kafka: str, topic: str, text: str) -> None:
    producer = KafkaProducer({"bootstrap.servers": kafka})
    producer.produce(topic, text, "k", 0)
    assert producer.flush(30) == 0


def test_it_ends_while_halfmq_does_not_answer(
    kafka: str, broker: BrokerProcess, topic: str, from_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        source_module,
        "hurried",
        lambda endpoint, _: Connection((endpoint,), None, RetryConfig(attempt_timeout=600.0, deadline=600.0)),
    )
    publishing, publish = threading.Event(), PartitionSink.publish

    def frozen(sink: PartitionSink, messages: Any, position: int) -> None:
        if messages and not publishing.is_set():
            broker.process.send_signal(signal.SIGSTOP)
            publishing.set()
        publish(sink, messages, position)

    monkeypatch.setattr(PartitionSink, "publish", frozen)
    source = new_topic(kafka, 1)
    produced(kafka, source, "first")
    try:
        with from_kafka({source: topic}) as running:
            assert publishing.wait(60)
        assert running.failure is None
    finally:
        broker.process.send_signal(signal.SIGCONT)
    assert carried_after_a_restart(kafka, broker, topic, source, from_kafka) == ["first", "last"]


def test_it_ends_while_kafka_does_not_answer(
    kafka: str, broker: BrokerProcess, topic: str, from_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, asked, publish = threading.Event(), threading.Event(), PartitionSink.publish
    source = new_topic(kafka, 1)

    def silent(*_: Any, **__: Any) -> dict[str, Future[Any]]:
        asked.set()
        return {source: Future()}

    with monkeypatch.context() as patched:
        patched.setattr(PartitionSink, "publish", lambda *given: (publish(*given), begun.set()))
        with from_kafka({source: topic}) as running:
            assert begun.wait(60)  # It has its partition: where it begins is written down.
            # What is asked before each epoch.
            patched.setattr(AdminClient, "describe_topics", silent)
            produced(kafka, source, "first")
            assert asked.wait(60)
        assert running.failure is None
    assert carried_after_a_restart(kafka, broker, topic, source, from_kafka) == ["first", "last"]
