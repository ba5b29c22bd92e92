"""Kafka: topics of halfmq carried to Kafka and back, exactly once."""

from __future__ import annotations

from halfmq_connect.kafka.bridge import KafkaBridge
from halfmq_connect.kafka.errors import BridgeError, MessagesMissing, MessageTooLarge, RecordRefused, TopicReplaced
from halfmq_connect.kafka.settings import BridgeSettings, SourceSettings
from halfmq_connect.kafka.source import KafkaSource
from halfmq_connect.kafka.target import KafkaPosition, KafkaTarget

__all__ = [
    "BridgeError",
    "BridgeSettings",
    "KafkaBridge",
    "KafkaPosition",
    "KafkaSource",
    "KafkaTarget",
    "MessageTooLarge",
    "MessagesMissing",
    "RecordRefused",
    "SourceSettings",
    "TopicReplaced",
]
