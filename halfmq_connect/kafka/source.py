"""The way back: topics of Kafka, published to halfmq exactly once, in order per key."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from client_core.admin import AsyncAdmin
from client_core.connection import BackgroundRunner, BrokerLink
from client_core.errors import BrokerFailed, BrokerUnavailable, RequestRefused
from consumer_sdk.reading import queue_offsets
from halfmq_connect.kafka.cluster import Cluster
from halfmq_connect.kafka.doors import hurried, patiently
from halfmq_connect.kafka.ending import Patience, PatientRunner
from halfmq_connect.kafka.epochs import Superseded
from halfmq_connect.kafka.errors import RecordRefused
from halfmq_connect.kafka.incoming import LARGEST_BODY, LARGEST_MESSAGE, message_of
from halfmq_connect.kafka.partitions import Partitions
from halfmq_connect.kafka.registry import register
from halfmq_connect.kafka.settings import SourceSettings, bridge_name, kafka_client, kafka_topic_name, routes
from halfmq_connect.kafka.watching import Watch
from halfmq_connect.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

    from client_core.connection import Endpoint, TlsConfig
    from halfmq.v1 import message_pb2
    from halfmq_connect.kafka.cluster import KafkaTopic
    from halfmq_connect.kafka.ending import Runs

__all__ = ["KafkaSource"]

_log = logging.getLogger("halfmq.kafka")
_LOOK_EVERY = 1.0
"""Seconds between two looks at what is left."""
_NUMBER = re.compile(r"messages\[(\d+)\]")


class KafkaSource:
    """Carries topics of Kafka to halfmq: each committed record exactly once.

    Several with the same name, in processes of their own, share the partitions.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        kafka: Mapping[str, Any] | str,
        topics: Mapping[str, str] | Sequence[str],
        *,
        name: str,
        settings: SourceSettings | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        """Checks the settings; nothing is connected yet.

        Args:
            endpoint: Where halfmq's brokers listen.
            kafka: Where Kafka listens, ``host:port``, or settings of its client (librdkafka's names).
            topics: By topic of Kafka, the topic of halfmq; or names that are the same on both sides.
            name: Name of the bridge. Its positions in halfmq are kept under it.
            settings: The others; None: their defaults.
            tls: How to encrypt the connection to halfmq; None: not at all.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._name = bridge_name(name)
        self._client = kafka_client(kafka)
        self._settings = settings or SourceSettings()
        self._routes = routes(topics)
        for start in self._routes:
            kafka_topic_name(start)
        self._connection = hurried(endpoint, tls)
        self._stopping = threading.Event()
        self._kafka, self._halfmq = Outage("Kafka"), Outage("halfmq")
        self.carried = 0
        self._left: int | None = None

    def outages(self) -> dict[str, bool]:
        """Which systems do not answer, as far as is known, by name."""
        return {"kafka": self._kafka.is_away, "halfmq": self._halfmq.is_away}

    def lag(self) -> int | None:
        """Records of this replica's partitions that are not carried yet, as of a second ago; None: not known yet."""
        return self._left

    def stop(self) -> None:
        """Has run() end, after the epoch under way if that ends within seconds.

        It can be called from a signal handler.
        """
        self._stopping.set()

    def run(self) -> None:
        """Carries records until stop() is called.

        While Kafka or halfmq do not answer it waits for them.

        Raises:
            ConfigurationError: A topic does not exist, or the bridge would be part of a loop.
            MessagesMissing: Kafka deleted records before they were carried.
            RecordRefused: halfmq refuses a record.
            BridgeError: Something else stops it; see halfmq_connect.kafka.errors.
        """
        runner = BackgroundRunner("KafkaSource")
        link = BrokerLink(self._connection)
        patience = Patience(self._stopping)
        patient = PatientRunner(runner, patience)
        cluster = Cluster(self._client, self._settings.replication, patience)
        try:
            # A topic may be another one after an outage.
            patiently(
                lambda: self._work(cluster, link, patient, self._prepare(cluster, link, patient)),
                self._kafka,
                self._halfmq,
                self._stopping,
            )
        finally:
            runner.run(link.close())
            runner.close()

    def _prepare(self, cluster: Cluster, link: BrokerLink, runner: Runs) -> dict[str, KafkaTopic]:
        """Checks both sides; the topics of Kafka."""
        if self._settings.create_topics:
            runner.run(self._create_topics())
        topics = cluster.topics(set(self._routes))
        edges = []
        for start, end in self._routes.items():
            topic_id = runner.run(queue_offsets(link, end, None, None))[0].topic_id
            edges.append((f"kafka:{start}", f"halfmq:{topic_id}"))
        register(cluster, self._client, f"from-kafka/{self._name}", edges)
        return topics

    async def _create_topics(self) -> None:
        async with AsyncAdmin(self._connection) as admin:
            for target in set(self._routes.values()):
                await admin.create_topic(target, exist_ok=True)

    def _work(self, cluster: Cluster, link: BrokerLink, runner: Runs, topics: Mapping[str, KafkaTopic]) -> None:
        watch = Watch(cluster, self._kafka)
        client = watch.watching(self._client)
        partitions = Partitions(
            self._name, client, self._settings, cluster, topics, link, runner, self._kafka, self._halfmq
        )
        look_at = 0.0
        try:
            while not self._stopping.is_set():
                # In this thread: Kafka's client may be closed in between in another one.
                if time.monotonic() >= look_at:
                    self._left, look_at = partitions.left(), time.monotonic() + _LOOK_EVERY
                for records in partitions.read():
                    if self._stopping.is_set():  # Each partition may wait for an answer that does not come.
                        return
                    self._carry(partitions, records)
                watch.look()
        finally:
            self._left = None
            partitions.close()

    def _carry(self, partitions: Partitions, records: Sequence[Message]) -> None:
        """Publishes records of one partition together with the position after them."""
        place = (str(records[0].topic()), int(records[0].partition() or 0))
        target = self._routes[place[0]]
        kept = [record for record in records if _position(record) not in self._settings.skip_records]
        messages = [message_of(record, target, self._settings.key_as) for record in kept]
        upto = int(records[-1].offset() or 0) + 1
        try:
            self._publish(partitions, place, kept, messages, upto)
        except Superseded:
            _log.info(
                "another replica has carried %s/%d further", *place, extra={"bridge": self._name, "topic": place[0]}
            )
            partitions.go_back(place)
        except (BrokerUnavailable, BrokerFailed) as error:
            self._halfmq.note(error)
            partitions.go_back(place)
        else:
            self._kafka.over()
            self._halfmq.over()

    def _publish(
        self,
        partitions: Partitions,
        place: tuple[str, int],
        records: Sequence[Message],
        messages: Sequence[message_pb2.Message],
        upto: int,
    ) -> None:
        """Publishes messages; if one is refused, those before it.

        Raises:
            RecordRefused: It names the first that is refused.
        """
        # One that no request can hold is not sent.
        number = next((n for n, each in enumerate(messages) if each.ByteSize() > LARGEST_MESSAGE), None)
        why = f"it has more than the {LARGEST_BODY} bytes that a body of halfmq has at most."
        try:
            self._publish_some(partitions, place, records, messages, number, upto)
        except RequestRefused as error:
            found = _NUMBER.match(error.field)
            if found is None:
                raise
            number, why = int(found[1]), str(error)
            self._publish_some(partitions, place, records, messages, number, upto)
        if number is not None:
            remedy = (
                "Raise the broker's limit (such as max_body_bytes), or leave the record out: skip_records"
                f" (--skip-record {_position(records[number])})."
            )
            raise RecordRefused(_position(records[number]), why, remedy)

    def _publish_some(
        self,
        partitions: Partitions,
        place: tuple[str, int],
        records: Sequence[Message],
        messages: Sequence[message_pb2.Message],
        number: int | None,
        upto: int,
    ) -> None:
        """Publishes so many messages; None: all of them."""
        if number is None:
            partitions.publish(place, messages, upto)
        elif number:
            partitions.publish(place, messages[:number], int(records[number].offset() or 0))
        self.carried += len(messages[:number])


def _position(record: Message) -> str:
    return f"{record.topic()}/{record.partition()}/{record.offset()}"
