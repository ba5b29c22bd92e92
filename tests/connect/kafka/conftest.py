"""Kafka, a broker of halfmq, and names that are the test's own."""

from __future__ import annotations

import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk import QueueReader
from halfmq_connect.kafka import BridgeSettings, KafkaBridge, KafkaSource, SourceSettings
from producer_sdk import Admin, Producer
from support.brokers import BrokerProcess
from support.databases import delete_files
from support.kafka import kafka_url, wait_until
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from consumer_sdk import StoredMessage


@pytest.fixture(scope="module")
def kafka() -> str:
    """Where Kafka listens."""
    return kafka_url()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker of halfmq that the tests of a file share."""
    url = f"sqlite:///{tmp_path_factory.mktemp('broker') / 'halfmq.db'}"
    with BrokerProcess(url) as process:
        yield process
    delete_files(url)


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    """Operators' calls."""
    with Admin(broker.endpoint) as made:
        yield made


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    """A producer of halfmq."""
    with Producer(broker.endpoint) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A name of the test's own: for topics on both sides, and for bridges."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """A topic of halfmq."""
    admin.create_topic(name)
    return name


class Stored:
    """What is in a topic of halfmq."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._reader, self._topic = QueueReader(endpoint), topic

    def count(self) -> int:
        return sum(each.max_offset for each in self._reader.queue_offsets(self._topic))

    def await_count(self, count: int) -> Sequence[StoredMessage]:
        wait_until(lambda: self.count() >= count, told=lambda: f"{self.count()} are there")
        found: list[StoredMessage] = []
        for queue in self._reader.queue_offsets(self._topic):
            found += self._reader.read_queue(self._topic, queue.queue, queue.min_offset, 10_000).messages
        assert len(found) == count
        return found


@pytest.fixture
def stored(broker: BrokerProcess, topic: str) -> Stored:
    """The content of the test's topic."""
    return Stored(broker.endpoint, topic)


class Running:
    """A bridge that runs in a thread."""

    def __init__(self, bridge: KafkaBridge | KafkaSource) -> None:
        self.bridge = bridge
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.bridge.run()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.bridge.stop()
        self._thread.join(HANG)
        assert not self._thread.is_alive()

    def failed(self) -> Any:
        """Waits until it stops by itself; why."""
        self._thread.join(HANG)
        assert self.failure is not None
        return self.failure


@pytest.fixture
def to_kafka(broker: BrokerProcess, kafka: str, name: str) -> Callable[..., Any]:
    """Runs a bridge of the test's topic and name, for a block; keywords are its settings."""

    @contextmanager
    def run(topics: Any = None, called: str | None = None, at: str | None = None, **settings: Any) -> Iterator[Running]:
        own = {"create_topics": True, "session_timeout": 2, **settings}
        running = Running(
            KafkaBridge(
                broker.endpoint, at or kafka, topics or [name], name=called or name, settings=BridgeSettings(**own)
            )
        )
        try:
            yield running
        finally:
            running.stop()

    return run


@pytest.fixture
def from_kafka(broker: BrokerProcess, kafka: str, name: str) -> Callable[..., Any]:
    """Runs the way back, from a topic of Kafka to the test's topic, for a block."""

    @contextmanager
    def run(topics: Any, called: str | None = None, **settings: Any) -> Iterator[Running]:
        own = {"session_timeout": 2, **settings}
        running = Running(
            KafkaSource(broker.endpoint, kafka, topics, name=called or name, settings=SourceSettings(**own))
        )
        try:
            yield running
        finally:
            running.stop()

    return run
