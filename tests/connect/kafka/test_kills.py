"""Bridges in both directions, halfmq's broker and Kafka killed on the way: every message arrives once, in order.

Messages go from a topic of halfmq to Kafka, and from there to another topic of halfmq, while they are sent. In full:

    HALFMQ_KAFKA_KILLS=50 scripts/test tests/connect/kafka/test_kills.py
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from consumer_sdk import QueueReader
from producer_sdk import Admin, Message, Producer, RetryConfig
from support.brokers import BrokerProcess
from support.kafka import BridgeProcess, PrivateKafka, committed, free_port, new_topic, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KILLS = int(os.environ.get("HALFMQ_KAFKA_KILLS", "4"))
GROUPS = 5
BATCH = 50
SOURCE, BACK = "orders", "orders-back"


class Site:
    """A Kafka, a broker, and a bridge in each direction; all of them may be killed and started again."""

    def __init__(self, folder: Path, kafka: PrivateKafka) -> None:
        self.kafka = kafka
        self._folder = folder
        self._listen = f"127.0.0.1:{free_port()}"
        self._launch()
        self.endpoint = self.broker.endpoint
        self.topic = new_topic(kafka.url, 3)
        with Admin(self.endpoint) as admin:
            admin.create_topic(SOURCE)
            admin.create_topic(BACK)
        common = ["--name", "shop", "--endpoint", self.endpoint, "--bootstrap-servers", kafka.url]
        common += ["--instance", "one", "--session-timeout", "2"]
        self.bridges = [
            BridgeProcess(self._made("there"), "kafka", "--topic", f"{SOURCE}={self.topic}", *common),
            BridgeProcess(self._made("back"), "from-kafka", "--topic", f"{self.topic}={BACK}", *common),
        ]

    def _launch(self) -> None:
        self.broker = BrokerProcess(f"sqlite:///{self._folder / 'halfmq.db'}", listen=self._listen)

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def kill(self, what: str) -> None:
        """SIGKILL for one of them, and starts it again."""
        if what == "kafka":
            self.kafka.kill()
            self.kafka.start()
        elif what == "broker":
            self.broker.kill()
            self.broker.close()
            self._launch()
        else:
            bridge = self.bridges[what == "the way back"]
            assert bridge.process.poll() is None, bridge.log
            bridge.kill()
            bridge.start()

    def close(self) -> None:
        for bridge in self.bridges:
            bridge.__exit__(None, None, None)
        self.broker.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """All parts, private to the test."""
    with PrivateKafka(tmp_path / "kafka") as kafka:
        made = Site(tmp_path, kafka)
        yield made
        made.close()


class Sender:
    """Sends numbered messages in groups until it is stopped."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.sent = 0
        self._topic = topic
        self._producer = Producer(endpoint, retry=RetryConfig(deadline=60))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._stopping.is_set():
            numbers = range(self.sent, self.sent + BATCH)
            self._producer.send_many([Message(self._topic, f"{n}", message_group=f"g{n % GROUPS}") for n in numbers])
            self.sent += BATCH
            # All of them are kept in memory to be counted.
            self._stopping.wait(0.02)

    def stop(self) -> int:
        """How many it sent."""
        self._stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        self._producer.close()
        return self.sent


def test_kills_on_the_way(site: Site) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    sender = Sender(site.endpoint, SOURCE)
    everything = ["bridge", "kafka", "the way back", "broker"]
    for number in range(KILLS):
        # Something is under way, and at another moment each time.
        reached = sender.sent + BATCH
        wait_until(lambda reached=reached: sender.sent >= reached)
        time.sleep(chance.uniform(0, 1.5))
        what = everything[number % len(everything)]
        print("killing", what, "after", sender.sent)
        site.kill(what)
    sent = sender.stop()
    records = committed(site.kafka.url, site.topic, sent, seconds=120)
    check(sent, [(record.key().decode(), record.value().decode()) for record in records])
    messages = []
    with QueueReader(site.endpoint, retry=RetryConfig(deadline=60)) as reader:
        wait_until(
            lambda: sum(each.max_offset for each in reader.queue_offsets(BACK)) >= sent,
            120,
            site.bridges[1].log.__str__,
        )
        for queue in reader.queue_offsets(BACK):
            at = 0
            while at < queue.max_offset:
                piece = reader.read_queue(BACK, queue.queue, at, 5000)
                at = piece.next_offset
                messages += piece.messages
    check(sent, [(message.message_group or "", message.text) for message in messages])
    assert [bridge.stop() for bridge in site.bridges] == [0, 0], site.bridges[0].log + site.bridges[1].log


def check(sent: int, found: Sequence[tuple[str, str]]) -> None:
    """Each number is there once, and those of a group are in order."""
    by_group: defaultdict[str, list[int]] = defaultdict(list)
    for group, number in found:
        by_group[group].append(int(number))
    assert len(found) == sent
    for group, numbers in by_group.items():
        assert numbers == list(range(int(group[1:]), sent, GROUPS)), group


def test_a_frozen_replica_that_comes_back(tmp_path: Path, kafka: str, broker: BrokerProcess, name: str) -> None:
    topic, back = new_topic(kafka, 2), f"{name}-back"
    with Admin(broker.endpoint) as admin:
        admin.create_topic(name)
        admin.create_topic(back)
    common = ["--name", name, "--endpoint", broker.endpoint, "--bootstrap-servers", kafka, "--session-timeout", "1"]
    there = ["kafka", "--topic", f"{name}={topic}", "--shards", "1", *common]
    ways = [there, ["from-kafka", "--topic", f"{topic}={back}", *common]]
    sender = Sender(broker.endpoint, name)
    processes: list[BridgeProcess] = []
    try:
        for number, way in enumerate(ways):
            (tmp_path / f"{number}").mkdir()
            processes.append(BridgeProcess(tmp_path / f"{number}", *way))
        reader = QueueReader(broker.endpoint)
        wait_until(lambda: sum(each.max_offset for each in reader.queue_offsets(back)) > 0)
        for process in processes[:2]:
            process.process.send_signal(signal.SIGSTOP)
        # Whatever they had under way, others take their place, and go on.
        for number, way in enumerate(ways):
            (tmp_path / f"second-{number}").mkdir()
            processes.append(BridgeProcess(tmp_path / f"second-{number}", *way))
        before = sum(each.max_offset for each in reader.queue_offsets(back))
        wait_until(lambda: sum(each.max_offset for each in reader.queue_offsets(back)) > before)
        for process in processes[:2]:
            process.process.send_signal(signal.SIGCONT)
        reached = sender.sent + 20 * BATCH
        wait_until(lambda: sender.sent >= reached)
        sent = sender.stop()
        records = committed(kafka, topic, sent)
        check(sent, [(record.key().decode(), record.value().decode()) for record in records])
        wait_until(lambda: sum(each.max_offset for each in reader.queue_offsets(back)) >= sent)
        assert sum(each.max_offset for each in reader.queue_offsets(back)) == sent
        reader.close()
    finally:
        sender.stop()
        for process in processes:
            process.__exit__(None, None, None)
