"""Where each queue is carried up to, in a compacted topic of Kafka: written in the transactions that carry messages.

A topic of positions has a partition for each shard. Its records: for a queue, under ``topic/queue``, the next offset;
for a topic, under its name, that the shard has begun with it. Offsets of a consumer group would go away by themselves
after a week without a commit (offsets.retention.minutes), and a bridge without a position would begin again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from halfmq_connect.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_connect.kafka.cluster import Cluster

__all__ = ["Positions", "begun", "create_positions", "position", "positions_topic", "shard_of"]

# A start reads the whole partition: it is kept short.
_CONFIG = {
    "cleanup_policy": "compact",
    "segment_bytes": 4 * 1024 * 1024,
    "segment_ms": 600_000,
    "min_cleanable_dirty_ratio": 0.1,
    "delete_retention_ms": 60_000,
}

Entry = tuple[bytes, bytes]


def positions_topic(bridge: str) -> str:
    """The topic of a bridge's positions."""
    return f"halfmq-bridge.{bridge}"


def shard_of(topic: str, queue: int, shards: int) -> int:
    """The shard that carries a queue; a topic's queues go to different ones."""
    return (crc32(topic.encode()) + queue) % shards


def position(topic: str, topic_id: str, queue: int, offset: int) -> Entry:
    """The record that says where a queue is carried up to."""
    return f"{topic}/{queue}".encode(), json.dumps({"topic_id": topic_id, "offset": offset}).encode()


def begun(topic: str, topic_id: str, shards: int) -> Entry:
    """The record that says that a shard has begun with a topic."""
    return topic.encode(), json.dumps({"topic_id": topic_id, "shards": shards}).encode()


@dataclass
class Positions:
    """What a shard's partition says.

    Attributes:
        queues: By topic and queue, the topic's identity and the next offset.
        topics: The identities of topics that were begun with.
    """

    queues: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Iterator[tuple[bytes, bytes | None]], shards: int) -> Positions:
        """Reads a partition.

        Raises:
            ConfigurationError: The bridge has another number of shards.
        """
        found = cls()
        for key, value in content:
            topic, slash, queue = key.decode().rpartition("/")
            said = json.loads(value or b"{}")
            if slash:
                found.queues[topic, int(queue)] = said["topic_id"], int(said["offset"])
            elif said.get("shards", shards) != shards:
                _refuse(shards, said["shards"])
            else:
                found.topics[queue] = said.get("topic_id", "")
        return found


def create_positions(cluster: Cluster, bridge: str, shards: int) -> str:
    """Creates the topic of positions, unless it exists; its identity.

    Raises:
        ConfigurationError: The bridge has another number of shards.
        KafkaException: Kafka does not answer, or refuses.
    """
    name = positions_topic(bridge)
    cluster.create(name, shards, **_CONFIG)
    there = cluster.topics([name])[name]
    if there.partitions != shards:
        _refuse(shards, there.partitions)
    return there.topic_id


def _refuse(shards: int, there: int) -> None:
    msg = (
        f"this bridge has {there} shards since it first started, not {shards}: the queues' positions are divided among"
        f" them. Set shards to {there} (--shards), or use another name"
    )
    raise ConfigurationError(msg, field="shards")
