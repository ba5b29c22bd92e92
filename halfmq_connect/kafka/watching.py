"""Whether Kafka answers, also while nothing is carried: when its client tells of a broken connection, it is asked."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from halfmq_connect.kafka.cluster import heard_by, unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfmq_connect.kafka.cluster import Cluster
    from halfmq_connect.outages import Outage

__all__ = ["Watch"]

_EVERY = 1.0
"""Seconds between two questions, while Kafka does not answer."""


class Watch:
    """Asks Kafka when there is a doubt: one lost connection, or an idle one that was closed, is no outage."""

    def __init__(self, cluster: Cluster, outage: Outage) -> None:
        """Takes who is asked, and who is told."""
        self._cluster, self._outage = cluster, outage
        self._doubt = threading.Event()
        self._asked_at = 0.0

    def watching(self, client: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a client of Kafka whose errors are a reason to ask."""
        return heard_by(client, lambda _: self._doubt.set())

    def look(self) -> bool:
        """Asks, if there is a doubt: whether it answers, as far as is known; takes some seconds while it does not."""
        if not self._doubt.is_set() or time.monotonic() - self._asked_at < _EVERY:
            return not self._doubt.is_set()
        self._doubt.clear()
        try:
            self._cluster.names()
        except KafkaException as raised:
            if unavailable(raised):
                self._doubt.set()
                self._outage.note(raised)
        else:
            self._outage.over()
        self._asked_at = time.monotonic()
        return not self._doubt.is_set()
