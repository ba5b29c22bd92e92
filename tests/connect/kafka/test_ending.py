"""Both ways end soon, also while an answer does not come; each record is there once all the same."""

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
from halfmq_connect.kafka import bridge as bridge_module
from halfmq_connect.kafka import source as source_module
from halfmq_connect.kafka.epochs import PartitionSink
from halfmq_connect.kafka.feed import QueueAt
from support.kafka import committed, new_topic, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from producer_sdk import Admin, Producer
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


def unhurried(endpoint: str, _: object) -> Connection:
    """How to reach halfmq: whoever waits for an answer would wait for ten minutes."""
    return Connection((endpoint,), None, RetryConfig(attempt_timeout=600.0, deadline=600.0))


def produced(kafka: str, topic: str, text: str) -> None:
    producer = KafkaProducer({"bootstrap.servers": kafka})
    producer.produce(topic, text, "k", 0)
    assert producer.flush(30) == 0


def test_it_ends_while_halfmq_does_not_answer(
    kafka: str, broker: BrokerProcess, topic: str, from_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "hurried", unhurried)
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


def test_the_way_there_ends_while_halfmq_does_not_answer(
    kafka: str,
    broker: BrokerProcess,
    admin: Admin,
    topic: str,
    producer: Producer,
    to_kafka: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge_module, "hurried", unhurried)
    target = new_topic(kafka, 1)
    admin.create_group(topic)
    producer.send(topic, "first")
    try:
        with to_kafka({topic: target}, group=topic) as running:
            wait_until(lambda: running.bridge.carried == 1)
            broker.process.send_signal(signal.SIGSTOP)
            # There is something left to tell the group, which nobody answers.
            running.bridge._plan.progress.note({QueueAt(topic, "", 0): 1})
        assert running.failure is None
    finally:
        broker.process.send_signal(signal.SIGCONT)
    producer.send(topic, "last")
    with to_kafka({topic: target}) as running:
        wait_until(lambda: running.bridge.carried == 1)
    assert [record.value() for record in committed(kafka, target, 2)] == [b"first", b"last"]


def test_the_way_there_ends_while_kafka_does_not_answer(
    kafka: str, topic: str, producer: Producer, to_kafka: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, asked = new_topic(kafka, 1), threading.Event()
    producer.send(topic, "first")

    def silent(_: AdminClient, resources: Any, **__: Any) -> dict[Any, Future[Any]]:
        asked.set()
        return {each: Future() for each in resources}

    with monkeypatch.context() as patched:
        patched.setattr(AdminClient, "describe_configs", silent)
        with to_kafka({topic: target}) as running:
            assert asked.wait(60)
        assert running.failure is None
    with to_kafka({topic: target}) as running:
        wait_until(lambda: running.bridge.carried == 1)
    assert [record.value() for record in committed(kafka, target, 1)] == [b"first"]
