"""Topics of the benchmarks in Kafka."""

from __future__ import annotations

import importlib.util
import secrets
from typing import TYPE_CHECKING, Any

from broker.errors import ConfigurationError
from halfmq_cli.bench.load import QUEUES, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class KafkaTopics:
    """Topics of Kafka that are the benchmark's own; a context manager that deletes them."""

    def __init__(self, servers: str) -> None:
        """Takes where Kafka listens.

        Raises:
            ConfigurationError: Its client is not installed.
        """
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigurationError("Kafka's client is not installed: pip install 'halfmq[kafka]'.", field="kafka")
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - only this command needs it

        self._client: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 2}
        self._admin = AdminClient(self._client)
        self._made: list[str] = []

    def __enter__(self) -> KafkaTopics:
        """Looks whether Kafka answers.

        Raises:
            ConfigurationError: It does not.
        """
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            self._admin.list_topics(timeout=10)
        except KafkaException as error:
            raise ConfigurationError(f"Kafka does not answer: {error.args[0]}", field="bootstrap_servers") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Deletes them, and forgets the bridges that had their names."""
        from halfmq_connect.kafka.cluster import Cluster  # noqa: PLC0415
        from halfmq_connect.kafka.registry import REGISTRY, forget  # noqa: PLC0415

        own = [*self._made, *(f"halfmq-bridge.{name}" for name in self._made)]
        there = self._admin.list_topics(timeout=10).topics
        if gone := [name for name in own if name in there]:
            for future in self._admin.delete_topics(gone).values():
                future.result()
        # What a bridge carries stays written down in Kafka, until it is forgotten.
        forgotten = {f"{direction}/{name}" for name in self._made for direction in ("to-kafka", "from-kafka")}
        cluster = Cluster(self._client, None)
        known = {key.decode() for key, value in cluster.content(REGISTRY, 0) if value} if REGISTRY in there else set()
        for name in forgotten & known:
            forget(cluster, self._client, name)

    def new(self) -> str:
        """Makes a topic, which is also the name of its bridge."""
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

        name = f"bench-{secrets.token_hex(4)}"
        for future in self._admin.create_topics([NewTopic(name, QUEUES)]).values():
            future.result()
        self._made.append(name)
        return name

    def numbers(self, topic: str) -> Iterator[int]:
        """The numbers of all committed records."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

        own = {"group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True}
        consumer = Consumer({**self._client, **own, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(QUEUES)])
        left = set(range(QUEUES))
        while left:
            for record in consumer.consume(1000, 10.0):
                if record.error() is not None:
                    left.discard(record.partition())
                else:
                    yield mark_of(record.value() or b"")
        consumer.close()
