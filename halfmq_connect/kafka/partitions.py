"""The partitions of Kafka that a replica reads: each from the position that halfmq has, of committed records only."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from halfmq_connect.kafka.cluster import unavailable
from halfmq_connect.kafka.epochs import PartitionSink, Superseded, first_partitions
from halfmq_connect.kafka.errors import BridgeError, MessagesMissing, TopicReplaced
from halfmq_connect.kafka.incoming import is_over, record_size
from halfmq_connect.kafka.membership import group_settings, start_over_if_fatal
from halfmq_connect.kafka.remaining import Remaining

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from confluent_kafka import Message

    from client_core.connection import BrokerLink
    from halfmq.v1 import message_pb2
    from halfmq_connect.kafka.cluster import Cluster, KafkaTopic
    from halfmq_connect.kafka.ending import Runs
    from halfmq_connect.kafka.settings import SourceSettings
    from halfmq_connect.outages import Outage

__all__ = ["Partitions"]

_log = logging.getLogger("halfmq.kafka")

Place = tuple[str, int]
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_UNREADABLE = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
_READ = 0.2
_AT_A_TIME = 16
"""Small records that are taken before their bytes are counted; one that is larger is taken alone."""
_SMALL = 64 * 1024
_MOST_BYTES = 16 * 1024 * 1024
"""Of the records of a batch, and one more record."""


_FETCHES = {
    # Of an answer of Kafka, and of a partition's part of it: compressed, and many times as much when they are not.
    "fetch.max.bytes": 4 * 1024 * 1024,
    "fetch.message.max.bytes": 128 * 1024,
    # Of what waits in the client, whose bytes it counts without headers.
    "queued.max.messages.kbytes": 16 * 1024,
    "queued.min.messages": 2000,
    "fetch.queue.backoff.ms": 10,
}
"""How far Kafka's client reads ahead."""


class Partitions:
    """A member of a consumer group whose positions are in halfmq."""

    def __init__(
        self,
        name: str,
        client: Mapping[str, Any],
        settings: SourceSettings,
        cluster: Cluster,
        topics: Mapping[str, KafkaTopic],
        link: BrokerLink,
        runner: Runs,
        kafka: Outage,
        halfmq: Outage,
    ) -> None:
        """Joins the group."""
        self._name, self._settings, self._cluster = name, settings, cluster
        self._identities = {topic.name: topic.topic_id for topic in topics.values()}
        self._link, self._runner, self._kafka, self._halfmq = link, runner, kafka, halfmq
        self._sinks: dict[Place, PartitionSink] = {}
        self._again: set[Place] = set()
        self._remaining: Remaining[Place] = Remaining()
        self._trouble: BaseException | None = None
        self._at_first = {} if settings.start == "earliest" else self._first_partitions(topics)
        own = {
            **group_settings(f"halfmq-source.{name}", settings.instance, settings.session_timeout),
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            # Behind the last record may be marks of transactions: only the client knows that there is no other one.
            "enable.partition.eof": True,
        }
        self._consumer = Consumer({**_FETCHES, **client, **own})
        self._consumer.subscribe(
            sorted(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    def _first_partitions(self, topics: Mapping[str, KafkaTopic]) -> dict[str, int]:
        """How many partitions each topic had at first: what later ones have came after the bridge's start."""
        return {
            topic.name: first_partitions(
                self._link, self._runner, self._name, topic.name, topic.topic_id, topic.partitions
            )
            for topic in topics.values()
        }

    def read(self) -> Iterator[Sequence[Message]]:
        """Records that came, by partition.

        Raises:
            MessagesMissing: Kafka deleted records before they were read.
            BridgeError: Kafka refuses.
        """
        self._reposition()
        records = self._some()
        if self._trouble is not None:
            raise self._trouble
        good = [record for record in records if not self._is_error(record)]
        good.sort(key=lambda record: (record.topic(), record.partition(), record.offset()))
        for place, some in groupby(good, lambda record: (record.topic(), record.partition())):
            # One that is to be read again, or was lost meanwhile, has stale records.
            if place in self._sinks and place not in self._again:
                # Nothing below the position, whatever the client still had in its queue.
                first = self._sinks[place].committed
                if fresh := [record for record in some if (record.offset() or 0) >= first]:
                    yield fresh

    def _some(self) -> list[Message]:
        """Records that are there, bounded in number and bytes; waits a little for the first."""
        records: list[Message] = []
        most, timeout, size = 1, _READ, 0
        while more := self._consumer.consume(most, timeout):
            records += more
            sizes = [record_size(record) for record in more]
            size += sum(sizes)
            # What comes behind one that halfmq refuses is not carried: it is not read either.
            if size >= _MOST_BYTES or len(records) >= self._settings.max_records or any(map(is_over, more)):
                break
            most = min(_AT_A_TIME if sizes[-1] <= _SMALL else 1, self._settings.max_records - len(records))
            timeout = 0
        return records

    def publish(self, place: Place, messages: Sequence[message_pb2.Message], position: int) -> None:
        """Publishes messages and moves the position; see PartitionSink.publish.

        Raises:
            TopicReplaced: The messages may be of another topic, which was made under the same name meanwhile.
        """
        # Kafka's client goes on reading such a topic, at the same offset.
        if self._cluster.topic_id(place[0]) != self._identities[place[0]]:
            msg = (
                f"{place[0]} was deleted and created anew: its records have other offsets. Give the bridge another name"
                " (name, --name), and it carries the topic from the start"
            )
            raise TopicReplaced(msg, reason="TOPIC_REPLACED")
        self._sinks[place].publish(messages, position)

    def left(self) -> int:
        """How many records partitions have behind their positions, by what Kafka told with its last answers.

        Of records that cannot be read yet, because a transaction before them is open, the marks at the ends of
        transactions are counted as well.
        """
        count = 0
        for place, sink in self._sinks.items():
            # One that is not read yet is not known.
            with suppress(KafkaException):
                found = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                if found is not None and sink.committed >= 0:
                    count += self._remaining.left(place, sink.committed, found[1])
        return count

    def go_back(self, place: Place) -> None:
        """Reads a partition again from the position that halfmq has."""
        self._again.add(place)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()

    def _is_error(self, record: Message) -> bool:
        error = record.error()
        place = (str(record.topic()), int(record.partition() or 0))
        if error is None:
            self._remaining.came(place, int(record.offset() or 0))
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            self._remaining.ended(place, int(record.offset() or 0))
            return True
        start_over_if_fatal(error, self._settings.instance)
        if error.code() in _GONE:
            # How many are gone is found out with its position.
            self._again.add(place)
        elif error.code() in _UNREADABLE:
            at = f"{record.topic()}/{record.partition()}/{record.offset()}"
            msg = (
                f"Kafka's client cannot read the batch at {at}: {error}. Nothing was skipped. Where it is"
                " damaged, delete up to behind it (kafka-delete-records) and set skip_missing (--skip-missing)"
            )
            # What came before it is carried first.
            self._trouble = BridgeError(msg, reason="BATCH_UNREADABLE")
        elif not unavailable(KafkaException(error)):
            msg = f"Kafka refuses: {error}"
            raise BridgeError(msg)
        else:
            _log.debug("Kafka's client: %s", error)
        return True

    def _reposition(self) -> None:
        for place, offset in self._offsets(sorted(self._again & self._sinks.keys())).items():
            self._consumer.incremental_unassign([TopicPartition(*place)])
            self._consumer.incremental_assign([TopicPartition(*place, offset)])
        self._again.clear()

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        try:
            for each in places:
                self._sinks[each.topic, each.partition] = PartitionSink(
                    self._link, self._runner, self._name, each.topic, self._identities[each.topic], each.partition
                )
            offsets = self._offsets([(each.topic, each.partition) for each in places])
        except BaseException as error:
            # Kafka's client called this; `read` raises it.
            self._trouble = error
            return
        consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in offsets.items()])

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for each in places:
            self._sinks.pop((each.topic, each.partition), None)
            self._again.discard((each.topic, each.partition))
            self._remaining.forget((each.topic, each.partition))

    def _offsets(self, places: Collection[Place]) -> dict[Place, int]:
        """Where partitions go on."""
        found: dict[Place, int] = {}
        while missing := [place for place in places if place not in found]:
            positions = {place: self._sinks[place].position() for place in missing}
            self._halfmq.over()
            # Afterwards, so that another replica cannot have moved a position behind these ends meanwhile.
            ends = self._cluster.ends(missing)
            self._kafka.over()
            for place in missing:
                # Another replica may move the position at the same moment: then it is read again.
                with suppress(Superseded):
                    found[place] = self._offset(place, positions[place], *ends[place])
        return found

    def _offset(self, place: Place, position: int | None, first: int, end: int) -> int:
        sink = self._sinks[place]
        if position is None:
            skips = self._settings.start == "latest" and place[1] < self._at_first[place[0]]
            position = end if skips else first
            # Written down before anything is read: what Kafka deletes from now on is missed.
            sink.publish([], position)
        elif position < first:
            self._missing(place, first - position, position)
            sink.publish([], first)
            return first
        elif position > end:
            msg = (
                f"{place[0]}/{place[1]} ends at {end}, and was carried up to {position}: Kafka has lost records, and"
                " new ones get their offsets. Give the bridge another name (name, --name), and it carries the topic"
                " from the start"
            )
            raise TopicReplaced(msg, reason="TOPIC_REPLACED")
        return position

    def _missing(self, place: Place, count: int, position: int) -> None:
        missing = MessagesMissing(
            f"{place[0]}/{place[1]}/{position}", count, "Kafka deleted records (retention, or kafka-delete-records)"
        )
        if not self._settings.skip_missing:
            raise missing
        _log.warning("skipping, as skip_missing says: %s", missing, extra={"bridge": self._name, "topic": place[0]})
