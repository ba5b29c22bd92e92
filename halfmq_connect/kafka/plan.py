"""What the shards of a bridge share: its settings, its connections, and its count of what it carried."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from client_core.errors import HalfmqError
from consumer_sdk.reading import commit_offsets, queue_offsets
from halfmq_connect.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client_core.connection import BackgroundRunner, BrokerLink
    from consumer_sdk.reading import QueueOffset
    from halfmq_connect.kafka.cluster import Cluster
    from halfmq_connect.kafka.settings import BridgeSettings
    from producer_sdk import Producer

__all__ = ["Plan"]

_REPORT_EVERY = 1.0


@dataclass
class Plan:
    """What the shards of a bridge share.

    Attributes:
        name: The bridge's name.
        client: Settings of Kafka's client.
        routes: By topic of halfmq, the topic of Kafka.
        settings: The others.
        cluster: Kafka.
        link: The brokers of halfmq; used on the loop of `runner`.
        runner: The background loop.
        producer: Sends messages that are too large for Kafka to their topic.
    """

    name: str
    client: Mapping[str, Any]
    routes: Mapping[str, str]
    settings: BridgeSettings
    cluster: Cluster
    link: BrokerLink
    runner: BackgroundRunner
    producer: Producer
    kafka: Outage = field(default_factory=lambda: Outage("Kafka"))
    halfmq: Outage = field(default_factory=lambda: Outage("halfmq"))
    carried: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reports: dict[str, dict[int, int]] = field(default_factory=dict)
    _reported: float = 0.0

    def queue_offsets(self, topic: str) -> list[QueueOffset]:
        """First and last offsets of a topic's queues."""
        return self.runner.run(queue_offsets(self.link, topic, None, None))

    def count(self, records: int) -> None:
        """Adds records that are committed in Kafka."""
        with self._lock:
            self.carried += records

    def report(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Tells the group, if there is one, how far queues are carried: now and then, and without waiting."""
        group = self.settings.group
        if group is None:
            return
        with self._lock:
            for (topic, queue), offset in ends.items():
                self._reports.setdefault(topic, {})[queue] = offset
            if time.monotonic() - self._reported < _REPORT_EVERY:
                return
            self._reported = time.monotonic()
            reports, self._reports = self._reports, {}
        for topic, offsets in reports.items():
            self.runner.submit(self._tell(group, topic, offsets))

    def report_rest(self) -> None:
        """Tells the group what was not told yet."""
        group = self.settings.group
        if group is not None:
            for topic, offsets in self._reports.items():
                self.runner.run(self._tell(group, topic, offsets))

    async def _tell(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        try:
            await commit_offsets(self.link, topic, group, offsets)
        except HalfmqError as error:
            # The next report says the same and more.
            self.halfmq.note(error)
