"""Consume, transform, produce: the input's ack is part of the send, so each input has one output."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import Admin, AsyncConsumer, Consumer, QueueReader
from producer_sdk import AsyncProducer, Message, Producer, RequestRefused
from ways.shops import texts

if TYPE_CHECKING:
    from broker.embedded import EmbeddedBroker

PROGRAM = Path(__file__).with_name("upper.py")
KILLS = int(os.environ.get("HALFMQ_FORWARD_KILLS", "6"))


@pytest.fixture
def group(broker: EmbeddedBroker, topic: str) -> str:
    with Admin(broker.endpoint) as admin:
        for name in (topic, f"{topic}-out", f"{topic}-out-copy"):
            admin.create_topic(name, queues=3)
        admin.create_group(f"of-{topic}", retry_delays=[0.02], max_attempts=1000, start="earliest")
    return f"of-{topic}"


def test_a_handler_forwards(broker: EmbeddedBroker, topic: str, group: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    left = {f"{number}" for number in range(20)}
    with Producer(broker.endpoint) as producer, Consumer(broker.endpoint, group, topic) as consumer:
        producer.send_many(Message(topic, body) for body in left)

        def forward(message: object) -> None:
            (place,) = producer.send_and_ack(Message(f"{topic}-out", message.body), message)  # type: ignore[attr-defined]
            assert place.topic == f"{topic}-out"
            left.discard(message.text)  # type: ignore[attr-defined]
            if not left:
                consumer.stop()

        consumer.run(forward)
        assert consumer.queue_offsets(topic, group)
        assert sum(each.lag for each in consumer.queue_offsets(topic, group)) == 0
    assert texts(broker.endpoint, f"{topic}-out") == sorted(f"{number}" for number in range(20))
    # Producers of other tests may still look for their brokers.
    said = [record.getMessage() for record in caplog.records if record.name == "halfmq.consumer"]
    assert said == [], "no receipt was sent twice"


def test_nothing_happens_where_a_lease_has_ended(broker: EmbeddedBroker, topic: str, group: str) -> None:
    with Producer(broker.endpoint) as producer, Consumer(broker.endpoint, group, topic) as consumer:
        producer.send(topic, "a")
        (message,) = consumer.receive(timeout=20)
        message.nack(delay=0)
        (again,) = consumer.receive(timeout=20)
        with pytest.raises(RequestRefused) as refused:
            producer.send_and_ack(Message(f"{topic}-out", "A"), message)
        assert refused.value.reason in {"RECEIPT_STALE", "RECEIPT_GONE"}
        with pytest.raises(RequestRefused, match="The body is empty") as refused:
            producer.send_and_ack([Message(f"{topic}-out", "A"), Message(f"{topic}-out", "")], again)
        assert refused.value.field == "messages[1].body"
        assert texts(broker.endpoint, f"{topic}-out") == []
        producer.send_and_ack([Message(f"{topic}-out", "A"), Message(f"{topic}-out", "AA")], [again])
    assert texts(broker.endpoint, f"{topic}-out") == ["A", "AA"]


def test_what_is_no_received_message_is_refused(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.endpoint) as producer:
        with pytest.raises(TypeError, match="expected messages that a consumer received, got str"):
            producer.send_and_ack(Message(topic, "a"), "handle")  # type: ignore[arg-type]
        for messages, received in (([], []), ([Message(topic, "a")], [])):
            with pytest.raises(RequestRefused):
                producer.send_and_ack(messages, received)


async def test_on_asyncio(broker: EmbeddedBroker, topic: str, group: str) -> None:
    async with AsyncProducer(broker.endpoint) as producer, AsyncConsumer(broker.endpoint, group, topic) as consumer:
        await producer.send_many([Message(topic, body) for body in "abc"])
        seen: list[str] = []
        async for message in consumer:
            await producer.send_and_ack(Message(f"{topic}-out", message.text.upper()), message)
            seen.append(message.text)
            if len(seen) == 3:
                consumer.stop()
        assert sum(each.lag for each in await consumer.queue_offsets(topic, group)) == 0
    assert texts(broker.endpoint, f"{topic}-out") == ["A", "B", "C"]


def _start(endpoint: str, group: str, topic: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), endpoint, group, topic, f"{topic}-out"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_each_input_has_one_output_whatever_is_killed(broker: EmbeddedBroker, topic: str, group: str) -> None:
    chance = random.Random(topic)
    sent: list[str] = []
    over = threading.Event()

    def send() -> None:
        with Producer(broker.endpoint) as producer:
            while not over.is_set():
                part = [f"g{number % 5}-{number}" for number in range(len(sent), len(sent) + 20)]
                producer.send_many(Message(topic, each, message_group=each.partition("-")[0]) for each in part)
                sent.extend(part)
                time.sleep(0.02)

    loops = [_start(broker.endpoint, group, topic) for _ in range(2)]
    sending = threading.Thread(target=send)
    sending.start()
    try:
        for number in range(KILLS):
            killed = number % len(loops)
            assert loops[killed].stdout is not None
            assert loops[killed].stdout.readline() == "ready\n"
            time.sleep(chance.uniform(0.05, 0.5))
            _kill(loops[killed])
            loops[killed] = _start(broker.endpoint, group, topic)
        over.set()
        sending.join(30)
        deadline = time.monotonic() + 60
        with QueueReader(broker.endpoint) as reader:
            while any(each.lag for each in reader.queue_offsets(topic, group)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        over.set()
        for loop in loops:
            _kill(loop)
    assert len(sent) > 100
    assert texts(broker.endpoint, f"{topic}-out") == sorted(each.upper() for each in sent)
    assert texts(broker.endpoint, f"{topic}-out-copy") == sorted(sent)
    _groups_are_in_order(broker.endpoint, f"{topic}-out")


def _groups_are_in_order(endpoint: str, topic: str) -> None:
    found: dict[str, list[int]] = {}
    with QueueReader(endpoint) as reader:
        for queue in reader.queue_offsets(topic):
            for message in reader.read_queue(topic, queue.queue, 0, 100_000).messages:
                found.setdefault(message.message_group or "", []).append(int(message.text.partition("-")[2]))
    assert len(found) == 5
    assert all(numbers == sorted(numbers) for numbers in found.values())
