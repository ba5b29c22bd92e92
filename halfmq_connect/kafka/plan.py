"""What the shards of a bridge share: its settings, its connections, and its count of what it carried."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from consumer_sdk.reading import queue_offsets
from halfmq_connect.kafka.ending import Patience, PatientRunner
from halfmq_connect.kafka.feed import QueueAt
from halfmq_connect.kafka.progress import Progress
from halfmq_connect.outages import Outage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from client_core.connection import BackgroundRunner, BrokerLink
    from consumer_sdk.reading import QueueOffset
    from halfmq_connect.kafka.beginning import PositionsTopic
    from halfmq_connect.kafka.cluster import Cluster
    from halfmq_connect.kafka.settings import BridgeSettings
    from producer_sdk import Producer

__all__ = ["Plan"]

_ANSWER_WITHIN = 5.0
"""Seconds that whoever asks for metrics waits."""


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
        positions: The topic of its positions.
        producer: Sends messages that are too large for Kafka to their topic.
        stopping: Set when the bridge is to end.
        kafka: Whether Kafka answers.
        halfmq: Whether halfmq does.
        carried: Messages that are committed in Kafka.
        starts: With ``latest``, where queues begin, by the identity of their topic and their number.
        progress: What the group of halfmq is told.
    """

    name: str
    client: Mapping[str, Any]
    routes: Mapping[str, str]
    settings: BridgeSettings
    cluster: Cluster
    link: BrokerLink
    runner: BackgroundRunner
    positions: PositionsTopic
    producer: Producer
    stopping: threading.Event
    kafka: Outage = field(default_factory=lambda: Outage("Kafka"))
    halfmq: Outage = field(default_factory=lambda: Outage("halfmq"))
    carried: int = 0
    starts: Mapping[str, int] = field(default_factory=dict)
    progress: Progress = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Begins with nothing carried."""
        self.progress = Progress(self.settings.group, self.link, self.runner, self.halfmq, self.stopping)

    def queue_offsets(self, topic: str) -> list[QueueOffset]:
        """First and last offsets of a topic's queues.

        Raises:
            Ending: The bridge is to end, and halfmq does not answer.
        """
        return PatientRunner(self.runner, Patience(self.stopping)).run(queue_offsets(self.link, topic, None, None))

    def left(self, reached: Mapping[QueueAt, int]) -> int:
        """How many messages queues have behind these offsets. Asks halfmq, and does not wait for long.

        Raises:
            HalfmqError: It refuses, or does not answer.
            TimeoutError: It does not answer in time.
        """
        count = 0
        for topic in {queue.topic for queue in reached}:
            asked = self.runner.submit(queue_offsets(self.link, topic, None, None))
            try:
                found = asked.result(_ANSWER_WITHIN)
            finally:
                asked.cancel()
            for each in found:
                # A queue of another topic with this name has offsets of its own.
                offset = reached.get(QueueAt(topic, each.topic_id, each.queue), each.max_offset)
                count += each.count(max(offset, each.min_offset), each.max_offset)
        return count

    def count(self, records: int) -> None:
        """Adds records that are committed in Kafka."""
        with self._lock:
            self.carried += records
