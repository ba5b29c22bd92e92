"""What the bridge asks of Kafka as a whole: topics and their limits, and all records of a small topic."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from halfmq_connect.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from concurrent.futures import Future

    from halfmq_connect.kafka.ending import Patience

__all__ = ["QUIET", "Cluster", "KafkaTopic", "client_of", "heard_by", "is_fenced", "unavailable"]

ClientT = TypeVar("ClientT")
ResultT = TypeVar("ResultT")

ANSWER = 20.0
"""Seconds to wait for an answer of Kafka."""
REACHED = 5.0
"""Seconds to wait for the first answer: whether it is there at all."""
QUIET = {"log_level": 2, "log.connection.close": False}
"""Kafka's client does not log each attempt to connect: an outage is logged once, here."""
_STEP = 0.5
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_CONFIG,
    KafkaError._SSL,
}
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}


def _error_of(raised: BaseException) -> KafkaError | None:
    first = raised.args[0] if isinstance(raised, KafkaException) and raised.args else None
    return first if isinstance(first, KafkaError) else None


def unavailable(raised: KafkaException) -> bool:
    """Whether it makes sense to try again: unless Kafka, or its client, refuses what was asked for."""
    error = _error_of(raised)
    return error is None or error.code() not in _REFUSED


def is_fenced(raised: KafkaException) -> bool:
    """Whether another process has taken this producer's place."""
    error = _error_of(raised)
    return error is not None and error.code() in _FENCED


def heard_by(client: Mapping[str, Any], hear: Callable[[KafkaError], None]) -> dict[str, Any]:
    """Settings of a client of Kafka whose errors somebody hears of; one that they name already does, too."""
    own = client.get("error_cb")

    def heard(error: KafkaError) -> None:
        hear(error)
        if own is not None:
            own(error)

    return {**client, "error_cb": heard}


def client_of(kind: Callable[[Any], ClientT], settings: Mapping[str, Any]) -> ClientT:
    """A client of Kafka with these settings.

    Raises:
        ConfigurationError: The client refuses one.
    """
    try:
        return kind(dict(settings))
    except (KafkaException, TypeError, ValueError) as raised:
        error = _error_of(raised)
        msg = f"Kafka's client refuses a setting ([kafka], --kafka): {raised if error is None else error.str()}"
        raise ConfigurationError(msg, field="kafka") from raised


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic of Kafka.

    Attributes:
        name: Its name.
        topic_id: Identity: one that is deleted and re-created has another.
        partitions: Number of partitions.
        max_bytes: Largest batch that it takes, in bytes (max.message.bytes).
    """

    name: str
    topic_id: str
    partitions: int
    max_bytes: int


class Cluster:
    """A cluster of Kafka, asked about its topics. Every call may raise KafkaException."""

    def __init__(self, client: Mapping[str, Any], replication: int | None, patience: Patience | None = None) -> None:
        """Asks nothing yet.

        Args:
            client: Settings of Kafka's client.
            replication: Replicas of topics that are created; None: Kafka's default.
            patience: How long to wait for answers; None: until there is one, or the request's time-out.

        Raises:
            ConfigurationError: The client refuses a setting.
        """
        self._client = {**client, **QUIET}
        self._replication = replication or -1
        self._patience = patience
        self._admin = client_of(AdminClient, self._client)

    def names(self) -> set[str]:
        """Names of all topics."""
        return set(self._admin.list_topics(timeout=REACHED).topics)

    def topics(self, names: Collection[str]) -> dict[str, KafkaTopic]:
        """The topics of these names.

        Raises:
            ConfigurationError: One does not exist.
        """
        missing = sorted(set(names) - self.names())
        if missing:
            msg = (
                f"Kafka has no topic {missing[0]!r}; create it (kafka-topics --create), or have it created with"
                " create_topics (--create-topics)"
            )
            raise ConfigurationError(msg, field="topics")
        described = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=ANSWER)
        resources = [ConfigResource("topic", name) for name in sorted(names)]
        limits = self._admin.describe_configs(resources, request_timeout=ANSWER)
        largest = {each.name: int(self._result(future)["max.message.bytes"].value) for each, future in limits.items()}
        found = {}
        for name, future in described.items():
            topic = self._result(future)
            found[name] = KafkaTopic(name, str(topic.topic_id), len(topic.partitions), largest[name])
        return found

    def topic_id(self, name: str) -> str:
        """Identity of a topic."""
        described = self._admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER)
        return str(self._result(described[name]).topic_id)

    def identity(self, name: str) -> str | None:
        """Identity of a topic; None: there is none of this name."""
        described = self._admin.describe_topics(TopicCollection([name]), request_timeout=REACHED)
        try:
            return str(self._result(described[name]).topic_id)
        except KafkaException as raised:
            error = _error_of(raised)
            if error is None or error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return None

    def create(self, name: str, partitions: int, **config: Any) -> None:
        """Creates a topic, unless it exists."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        new = NewTopic(name, partitions, self._replication, config=settings)
        (future,) = self._admin.create_topics([new], request_timeout=ANSWER, operation_timeout=ANSWER).values()
        try:
            self._result(future)
        except KafkaException as raised:
            error = _error_of(raised)
            if error is None or error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        until = time.monotonic() + ANSWER
        while name not in self.names():
            if time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"the topic {name} does not appear"))
            self._check()
            time.sleep(0.05)

    def content(self, topic: str, partition: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of all committed records of a partition, in order."""
        settings = {
            "group.id": "halfmq-bridge-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
        consumer = Consumer({**self._client, **settings, "isolation.level": "read_committed"})
        with closing(consumer):
            place = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end = consumer.get_watermark_offsets(place, timeout=REACHED)
            consumer.assign([place])
            until = time.monotonic() + ANSWER
            while True:
                record = consumer.poll(1.0)
                if record is None:
                    self._check()
                    if time.monotonic() > until:
                        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic} is not read to its end"))
                    continue
                error = record.error()
                if error is None:
                    until = time.monotonic() + ANSWER
                    yield record.key() or b"", record.value()
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif (record.offset() or 0) >= end:
                    return

    def ends(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """First and last offset of partitions, for readers of committed records."""
        first = self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {place: (first[place], last[place]) for place in places}

    def _offsets(self, places: Collection[tuple[str, int]], which: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = self._admin.list_offsets(
            {TopicPartition(*place): which for place in places},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER,
        )
        return {(place.topic, place.partition): self._result(future).offset for place, future in asked.items()}

    def flush(self, producer: Producer) -> None:
        """Waits until what a producer has is sent, or failed; as long as the calls of this class wait."""
        until = time.monotonic() + 2 * ANSWER
        while producer.flush(_STEP) and time.monotonic() < until:
            self._check()

    def _result(self, future: Future[ResultT]) -> ResultT:
        return future.result() if self._patience is None else self._patience.result(future)

    def _check(self) -> None:
        if self._patience is not None:
            self._patience.check()
