"""Real Kafka for tests: one that they share, ones of their own to kill; and bridges in processes of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from halfmq_connect.kafka.cluster import Cluster, unavailable
from halfmq_connect.kafka.registry import REGISTRY
from support.databases import in_ci
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from confluent_kafka import Message

_CHECKOUT = Path(__file__).parents[2]
_SCRIPT = _CHECKOUT / "scripts" / "kafka"
_WAIT = 180.0
"""Seconds for what comes within a few, where the machine is busy and Kafka has just started."""


def kafka_url() -> str:
    """Where the shared Kafka listens: HALFMQ_TEST_KAFKA, or started by scripts/kafka where that is wanted.

    Without either the test is skipped; in CI it fails. One that is started here is left running.
    """
    if url := os.environ.get("HALFMQ_TEST_KAFKA"):
        return url
    if in_ci() or os.environ.get("HALFMQ_TEST_DB") == "start":
        return _started()
    pytest.skip("needs Kafka: set HALFMQ_TEST_KAFKA, or HALFMQ_TEST_DB=start to have it started (scripts/kafka)")


@lru_cache
def _started() -> str:
    result = subprocess.run([str(_SCRIPT), "start"], capture_output=True, text=True, check=False, timeout=600)
    if result.returncode != 0:
        pytest.fail(f"scripts/kafka start failed:\n{result.stderr}", pytrace=False)
    return result.stdout.split()[-1]


def free_port() -> int:
    """A port that nobody listens on; the next one is free as well."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


class PrivateKafka:
    """A Kafka that a test may kill: its own, on its own data and ports; a context manager that starts it."""

    def __init__(self, folder: Path) -> None:
        """Takes where its data goes."""
        kafka_url()  # The test is skipped where there is none at all.
        port = free_port()
        self.url = f"127.0.0.1:{port}"
        self._environment = {**os.environ, "HALFMQ_KAFKA_DIR": str(folder), "HALFMQ_KAFKA_PORT": str(port)}

    def start(self) -> None:
        """Starts it, or starts it again on the same data and port, and waits until it serves."""
        assert self._run("start").split()[-1] == self.url

    def kill(self) -> None:
        """SIGKILL."""
        self._run("kill")

    def stop(self) -> None:
        """Shuts it down: all that it has is in its data then."""
        self._run("stop")

    def _run(self, what: str) -> str:
        done = subprocess.run(
            [str(_SCRIPT), what], env=self._environment, capture_output=True, text=True, check=False, timeout=HANG
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; its data is the test's."""
        with contextlib.suppress(AssertionError):
            self.kill()


def new_topic(url: str, partitions: int = 3, name: str | None = None, **config: object) -> str:
    """Makes a topic of Kafka; its name."""
    name = name or f"topic.{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": url})
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=settings)]).values():
        future.result()
    return name


def committed(url: str, topic: str, expected: int, seconds: float = _WAIT) -> list[Message]:
    """All committed records of a topic, from its beginning, in order per partition.

    Waits until there are as many as expected, and then reads on to the end: what is there twice is found.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": url,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    until = time.monotonic() + seconds
    # A bridge may be about to make it.
    while not (partitions := consumer.list_topics(topic, 30).topics[topic].partitions) and time.monotonic() < until:
        time.sleep(0.05)
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    found: list[Message] = []
    ended: set[int | None] = set()
    while len(found) < expected or len(ended) < len(partitions):
        if time.monotonic() > until:
            places = [TopicPartition(topic, each) for each in partitions]
            ends = {each.partition: consumer.get_watermark_offsets(each, timeout=10)[1] for each in places}
            at = {each.partition: each.offset for each in consumer.position(places)}
            told = f"{len(found)} committed records, {expected} are expected; read up to {at}, committed up to {ends}"
            pytest.fail(f"{topic} has {told}", pytrace=False)
        for record in consumer.consume(1000, 0.2):
            if record.error() is None:
                found.append(record)
                ended.discard(record.partition())
            else:
                ended.add(record.partition())
    consumer.close()
    return found


class BridgeProcess:
    """`halfmq bridge` in a process of its own; its log is kept in a file."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Starts it; several with the same folder share the log."""
        self._log = folder / "bridge.log"
        self._command = [sys.executable, "-m", "halfmq_cli", "bridge", *arguments]
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, cwd=_CHECKOUT, env=own, stderr=log, stdout=log)

    @property
    def log(self) -> str:
        """What it, and those before it, wrote."""
        return self._log.read_text()

    def await_log(self, words: str, count: int = 1, seconds: float = _WAIT) -> None:
        """Waits until some words are in the log so many times."""
        wait_until(lambda: self.log.count(words) >= count, seconds, lambda: f"{words!r} not in the log:\n{self.log}")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> int:
        """SIGTERM, and waits; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        """Runs already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it in whatever state it is."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


@lru_cache
def _cluster(kafka: str) -> Cluster:
    return Cluster({"bootstrap.servers": kafka}, None)


def registered(kafka: str, name: str) -> bytes | None:
    """What a bridge has written down of itself; None: nothing, or its topic is not there yet."""
    cluster = _cluster(kafka)
    if REGISTRY not in cluster.names():
        return None
    try:
        return dict(cluster.content(REGISTRY, 0)).get(name.encode())
    except KafkaException as raised:
        # Servers learn of a topic one after the other.
        if not unavailable(raised):
            raise
        return None


def wait_until(holds: Callable[[], Any], seconds: float = _WAIT, told: Callable[[], str] = str) -> None:
    """Polls until something holds, for what gives no signal."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            pytest.fail(f"it does not hold after {seconds} s: {told()}", pytrace=False)
        time.sleep(0.02)
