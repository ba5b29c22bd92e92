"""Kafka as a place to send messages to outside of transactions: for relays that keep their own note."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from client_core.arguments import check_seconds
from halfmq_connect.kafka.cluster import QUIET, REACHED, client_of, heard_by
from halfmq_connect.kafka.errors import BridgeError, ConfigurationError, RecordRefused
from halfmq_connect.kafka.outgoing import record_of
from halfmq_connect.kafka.settings import kafka_client, kafka_topic_name, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from client_core.message import Message

__all__ = ["KafkaPosition", "KafkaTarget"]

_LEAVE_OUT = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._INVALID_ARG,
}
"""Errors that the same message gets again."""
_SERVE = 0.01
"""Seconds of one look for answers."""
_LOOK = 0.2
"""Seconds between two looks at the connection's state, while close() waits."""


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """Where a record is in Kafka."""

    topic: str
    partition: int
    offset: int


class KafkaTarget:
    """Sends messages to Kafka: acknowledged by all in-sync replicas, in order per key, at least once.

    Within one call nothing is doubled (the producer is idempotent). A message that is sent again in another call is in
    Kafka twice; both have its id in the header ``halfmq.message_id``.
    """

    def __init__(
        self, kafka: Mapping[str, Any] | str, topics: Mapping[str, str] | None = None, *, timeout: float = 30.0
    ) -> None:
        """Reads the settings; connects in the background.

        Args:
            kafka: Where Kafka listens, ``host:port``, or settings of its client (librdkafka's names).
            topics: By topic of a message, the topic of Kafka; others go to the topic of the same name.
            timeout: Seconds that send() takes, about, at most.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        client = kafka_client(kafka)
        self._topics = routes(topics) if topics else {}
        for target in self._topics.values():
            kafka_topic_name(target)
        check_seconds("timeout", timeout)
        self._timeout = timeout
        own = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": int(timeout * 1000)}
        defaults = {"linger.ms": 5, "partitioner": "murmur2_random"}
        self._producer = client_of(Producer, heard_by({**defaults, **client, **QUIET, **own}, self._on_error))
        self._lock = threading.Lock()
        self._has_answered = False
        self.is_failing = False
        """Whether no server of Kafka can be reached, as far as is known."""

    def send(
        self, messages: Sequence[Message], may_send: Callable[[], bool] | None = None
    ) -> list[KafkaPosition | BridgeError]:
        """Sends messages, and waits until each of them is acknowledged or failed. Safe between threads.

        Those after one that failed are sent all the same, also those of its key.

        Args:
            messages: The messages.
            may_send: Asked at last, when other calls have handed over theirs: False, and none is sent.

        Returns:
            For each message, in order: where it is; a RecordRefused, if Kafka will never take it; or a BridgeError with
            the reason ``KAFKA_UNAVAILABLE``: it may be there or not, send it again; or ``NOT_SENT``, see `may_send`.
        """
        results: list[KafkaPosition | BridgeError | None] = [None] * len(messages)
        with self._lock:
            if may_send is not None and not may_send():
                return [BridgeError("it was not to be sent any more", reason="NOT_SENT") for _ in messages]
            for index, message in enumerate(messages):
                try:
                    self._produce(message, functools.partial(self._note, results, index, message.topic))
                except (KafkaException, ConfigurationError) as raised:
                    error = raised.args[0] if isinstance(raised, KafkaException) else None
                    results[index] = _failure(message.topic, error, raised)
        self._await(results)
        unknown = BridgeError("Kafka did not answer in time; send the message again", reason="KAFKA_UNAVAILABLE")
        return [unknown if result is None else result for result in results]

    def _await(self, results: Sequence[object]) -> None:
        """Waits for one call's own messages: another's may be for a topic that takes none."""
        done, until = 0, time.monotonic() + self._timeout + 5
        while time.monotonic() < until:
            while done < len(results) and results[done] is not None:
                done += 1
            if done == len(results):
                return
            # Whoever polls also takes what is for other calls.
            self._producer.poll(_SERVE)

    def close(self) -> None:
        """Waits for what is under way, unless Kafka cannot be reached: then it is given up."""
        began = time.monotonic()
        # What the client knows of its connections is told in poll() and flush() only.
        self._producer.poll(0)
        while len(self._producer) > 0 and time.monotonic() < began + self._timeout:
            if self.is_failing:
                self._producer.purge()
            self._producer.flush(_LOOK)
            if not self._has_answered and not self.is_failing and time.monotonic() >= began + 1:
                self._ask()

    def __enter__(self) -> Self:
        """Is connected in the background already."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def _ask(self) -> None:
        """Asks a Kafka that never answered: where packets are lost, its client takes up to 30 s to give up."""
        try:
            self._producer.list_topics(timeout=min(REACHED, self._timeout))
        except KafkaException:
            self.is_failing = not self._has_answered
        else:
            self._has_answered = True

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_failing = True

    def _produce(self, message: Message, on_delivery: Any) -> None:
        topic = kafka_topic_name(self._topics.get(message.topic, message.topic), "topic")
        key, value, headers = record_of(message)
        while True:
            try:
                self._producer.produce(topic, value, key, headers=list[Any](headers), on_delivery=on_delivery)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _note(
        self,
        results: list[KafkaPosition | BridgeError | None],
        index: int,
        topic: str,
        error: KafkaError | None,
        record: Any,
    ) -> None:
        if error is None or error.code() >= 0:  # Those below are the client's own.
            self._has_answered, self.is_failing = True, False
        if error is None:
            results[index] = KafkaPosition(record.topic(), record.partition(), record.offset())
        else:
            results[index] = _failure(topic, error, error)


def _failure(topic: str, error: KafkaError | None, raised: object) -> BridgeError:
    if isinstance(raised, ConfigurationError) or (error is not None and error.code() in _LEAVE_OUT):
        return RecordRefused(topic, f"{raised}.", "Change the message, or the topic's settings in Kafka.")
    return BridgeError(f"Kafka did not take the message: {raised}; send it again", reason="KAFKA_UNAVAILABLE")
