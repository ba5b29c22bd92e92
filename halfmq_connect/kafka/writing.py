"""Writing messages and positions in transactions of Kafka."""

from __future__ import annotations

import functools
import logging
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from client_core.errors import RequestRefused
from halfmq_connect.kafka.errors import HalfmqError, MessageTooLarge, RecordRefused
from halfmq_connect.kafka.outgoing import Diverted, batch_size, records_of
from halfmq_connect.kafka.positions import positions_topic

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping

    from confluent_kafka import Message, Producer

    from halfmq_connect.kafka.cluster import KafkaTopic
    from halfmq_connect.kafka.feed import Portion, QueueAt
    from halfmq_connect.kafka.outgoing import Record
    from halfmq_connect.kafka.plan import Plan
    from halfmq_connect.kafka.positions import Entry

__all__ = ["Stopping", "Writer"]

_log = logging.getLogger("halfmq.kafka")

_COMMIT = 5.0
"""Seconds of one try to commit; it is resumed by the next one."""
_MAYBE_TOO_LARGE = 64 * 1024
"""Key and headers take less than this."""
_FAULTS = {
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}
"""Errors that the same record gets again."""


class Stopping(Exception):
    """The shard is to end while a transaction is under way; its next owner does it again."""


class Writer:
    """Writes one transaction after the other, by a producer that has been initialised."""

    def __init__(
        self,
        plan: Plan,
        producer: Producer,
        topics: Mapping[str, KafkaTopic],
        refused: Mapping[str, RecordRefused],
        stopping: threading.Event,
    ) -> None:
        """Takes the topics of Kafka by name, for their limits and partitions, and records to stop at, by position."""
        self._plan, self._producer, self._topics, self._stopping = plan, producer, topics, stopping
        self._stop_at = refused
        self._positions = positions_topic(plan.name)
        self._refused: RecordRefused | None = None

    def begin(self) -> None:
        """Begins a transaction."""
        self._refused = None
        self._producer.begin_transaction()

    def write(self, portion: Portion) -> tuple[int, int, HalfmqError | None]:
        """Writes messages, up to the first that cannot be.

        Returns:
            The offset after the last one written, how many were, and why that is not all of them.
        """
        queue = portion.queue
        topic = self._topics[self._plan.routes[queue.topic]]
        count, maybe_too_large = 0, topic.max_bytes - _MAYBE_TOO_LARGE
        next_offset = portion.start if portion.first_kept <= portion.start else portion.first_kept
        for columns in portion.columns:
            for record in records_of(columns):
                if self._stop_at and (refused := self._stop_at.get(_place(queue, record.offset))):
                    return next_offset, count, refused
                if len(record.value) > maybe_too_large and (trouble := self._too_large(queue, topic, record)):
                    # One that is too large there as well would go round for ever.
                    if self._plan.settings.too_large_to in {None, queue.topic}:
                        return next_offset, count, trouble
                    try:
                        self._divert(record, trouble)
                    except RequestRefused as error:
                        return next_offset, count, error
                else:
                    self._produce(queue, topic, record)
                    count += 1
                next_offset = record.offset + 1
        return portion.next_offset, count, None

    def note(self, shard: int, entries: Iterable[Entry]) -> None:
        """Writes positions."""
        for key, value in entries:
            self._send(self._positions, value, key, partition=shard)

    def commit(self) -> None:
        """Commits the transaction; while Kafka does not answer it goes on trying.

        Raises:
            RecordRefused: Kafka refuses a record; nothing of the transaction is committed.
            Stopping: The shard is to end, and it is not committed yet.
            KafkaException: It is not committed, or nobody knows: start over.
        """
        while True:
            try:
                self._producer.commit_transaction(_COMMIT)
            except KafkaException as raised:
                if self._refused is not None:
                    raise self._refused from raised
                if not raised.args[0].retriable():
                    raise
                if self._stopping.is_set():
                    raise Stopping from raised
                self._plan.kafka.note(raised)
            else:
                return

    def _produce(self, queue: QueueAt, topic: KafkaTopic, record: Record) -> None:
        settings: dict[str, Any] = {"timestamp": record.timestamp, "headers": record.headers}
        if record.key is None:
            settings["partition"] = queue.queue % topic.partitions
        self._send(
            topic.name,
            record.value,
            record.key,
            on_delivery=functools.partial(self._failed, queue, record.offset),
            **settings,
        )

    def _send(self, topic: str, value: bytes, key: bytes | None, **settings: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, **settings)
            except BufferError:
                # Kafka is slower than we are, or away: then the messages fail after a while, and the shard starts over.
                self._producer.poll(0.2)
                if self._stopping.is_set():
                    raise Stopping from None
            else:
                return

    def _failed(self, queue: QueueAt, offset: int, error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() in _FAULTS and self._refused is None:
            why = f"{error.str()} ({error.name()})."
            remedy = (
                "Change the topic's settings in Kafka; a compacted topic takes no records without a key, and"
                " message.timestamp.after.max.ms bounds times."
            )
            self._refused = RecordRefused(_place(queue, offset), why, remedy)

    def _too_large(self, queue: QueueAt, topic: KafkaTopic, record: Record) -> MessageTooLarge | None:
        size = batch_size(record.key, record.value, record.headers)
        if size <= topic.max_bytes:
            return None
        place = _place(queue, record.offset)
        return MessageTooLarge(record.message_id, place, topic.name, size, topic.max_bytes)

    def _divert(self, record: Record, trouble: MessageTooLarge) -> None:
        """Sends a message to the topic for those that are too large, before the transaction that skips it.

        If that is repeated, its id is the same: halfmq stores it once.

        Raises:
            RequestRefused: halfmq refuses it.
        """
        diverted = Diverted.of(record)
        reason = f"{trouble.size} bytes in Kafka, {trouble.limit} are allowed"
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._plan.name}/{record.message_id}"))
        send = functools.partial(
            self._plan.producer.send,
            str(self._plan.settings.too_large_to),
            record.value,
            keys=diverted.keys,
            tag=diverted.tag,
            message_id=own,
        )
        try:
            send(properties={**diverted.origin, "bridge.reason": reason, **diverted.properties})
        except RequestRefused as error:
            if error.reason not in {"PROPERTIES_TOO_LARGE", "MESSAGE_ID_REUSED"}:
                raise
            if error.reason == "PROPERTIES_TOO_LARGE":
                # Its own fill what halfmq allows: the log alone tells where it comes from.
                send(properties=diverted.properties)
            # Else it was sent before, when the limit was another one.
        about = {"bridge": self._plan.name, "message_id": own, "topic": self._plan.settings.too_large_to}
        _log.warning("sent to %s as %s: %s", self._plan.settings.too_large_to, own, trouble, extra=about)


def _place(queue: QueueAt, offset: int) -> str:
    return f"{queue.topic}/{queue.queue}/{offset}"
