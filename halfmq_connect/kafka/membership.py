"""Which replica has which partitions of a topic: a consumer group of Kafka, that reads nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from halfmq_connect.kafka.cluster import QUIET, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from confluent_kafka import TopicPartition

__all__ = ["Membership", "group_settings", "start_over_if_fatal"]

_log = logging.getLogger("halfmq.kafka")


def group_settings(group: str, instance: str | None, session_timeout: float) -> dict[str, Any]:
    """Settings of a member of a group."""
    settings = {
        **QUIET,
        "group.id": group,
        "enable.auto.commit": False,
        "session.timeout.ms": int(session_timeout * 1000),
        "heartbeat.interval.ms": max(100, int(session_timeout * 1000 / 4)),
        "partition.assignment.strategy": "cooperative-sticky",
    }
    return settings if instance is None else {**settings, "group.instance.id": instance}


def start_over_if_fatal(error: KafkaError, instance: str | None) -> None:
    """Raises if a member of a group cannot go on after an error; a new one can.

    Kafka tells a member that another one has its name also when it was itself that joined twice: when Kafka is killed
    before it answers the first time. So this is no reason to stop. Two that have one name push each other out again and
    again; nothing is lost or doubled by that, and the log tells.

    Raises:
        KafkaException: It cannot go on.
    """
    if error.code() not in {KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL} and not error.fatal():
        return
    if instance is not None:
        _log.warning(
            "joining the group again: another replica of this bridge has the name %r as well (instance, --instance, is"
            " unique), or Kafka was restarted",
            instance,
        )
    raise KafkaException(error)


class Membership:
    """A replica's share of the partitions, as the group says; it may be wrong about it for a while.

    So it decides who works, and never what is right: that is for the producers' fencing.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        group: str,
        topic: str,
        *,
        instance: str | None,
        session_timeout: float,
        gained: Callable[[Collection[int]], None],
        lost: Callable[[Collection[int]], None],
    ) -> None:
        """Joins the group; the functions are called with partitions, within `poll` and `close`."""
        self._instance = instance
        self._gained, self._lost = gained, lost
        self._consumer = Consumer({**client, **group_settings(group, instance, session_timeout)})
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def poll(self, seconds: float) -> None:
        """Takes part in the group for this time.

        Raises:
            KafkaException: It cannot go on; a new one can, unless Kafka refuses.
        """
        record = self._consumer.poll(seconds)
        error = record.error() if record is not None else None
        if error is None:
            return
        start_over_if_fatal(error, self._instance)
        raised = KafkaException(error)
        if not unavailable(raised):
            raise raised
        _log.debug("the group of replicas: %s", error)

    def close(self) -> None:
        """Leaves the group."""
        self._consumer.close()

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(places)
        # Nothing is read: the shards read their positions themselves, when they are theirs alone.
        consumer.pause(places)
        self._gained([each.partition for each in places])

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._lost([each.partition for each in places])
