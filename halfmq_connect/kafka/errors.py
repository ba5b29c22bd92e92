"""Errors of the bridge.

HalfmqError              base of all errors of halfmq's SDKs
├── ConfigurationError   settings that cannot work, such as a topic that does not exist, or a loop
└── BridgeError          the bridge stopped: it goes on from the same place when it is started again
    ├── MessageTooLarge  a message is over the limit of its Kafka topic
    ├── MessagesMissing  messages or records were deleted before they were carried
    ├── TopicReplaced    a topic was deleted and created anew
    └── RecordRefused    Kafka or halfmq refuses a record
"""

from __future__ import annotations

from client_core.errors import ConfigurationError, HalfmqError

__all__ = [
    "BridgeError",
    "ConfigurationError",
    "HalfmqError",
    "MessageTooLarge",
    "MessagesMissing",
    "RecordRefused",
    "TopicReplaced",
]


class BridgeError(HalfmqError):
    """The bridge stopped; nothing is lost or skipped. Started again, it goes on from the same place."""


class MessageTooLarge(BridgeError):
    """A message is larger than its Kafka topic allows.

    Attributes:
        message_id: The message.
        position: Its place in halfmq, ``topic/queue/offset``.
        size: Bytes of the record batch that it would be, alone.
        limit: The topic's ``max.message.bytes``.
    """

    def __init__(self, message_id: str, position: str, kafka_topic: str, size: int, limit: int) -> None:
        """Creates the error; the arguments become attributes of the same names."""
        super().__init__(
            f"the message {message_id} at {position} takes {size} bytes in Kafka, and max.message.bytes of the topic"
            f" {kafka_topic!r} is {limit}: raise that (kafka-configs --alter), or name a halfmq topic for such messages"
            " (too_large_to, --too-large-to)",
            reason="MESSAGE_TOO_LARGE",
            message_ids=(message_id,),
        )
        self.message_id, self.position, self.size, self.limit = message_id, position, size, limit


class MessagesMissing(BridgeError):
    """Messages or records were deleted before they were carried.

    Attributes:
        position: The first of them: topic/queue/offset, or topic/partition/offset.
        count: How many offsets are gone.
    """

    def __init__(self, position: str, count: int, why: str) -> None:
        """Creates the error; `why` begins a sentence."""
        super().__init__(
            f"{count} from {position} on are gone before they were carried: {why}. To go on with what is there, set"
            " skip_missing (--skip-missing)",
            reason="MESSAGES_MISSING",
        )
        self.position, self.count = position, count


class RecordRefused(BridgeError):
    """The system that a record goes to refuses it.

    Attributes:
        position: Where the record comes from: topic/queue/offset in halfmq, topic/partition/offset in Kafka.
    """

    def __init__(self, position: str, why: str, remedy: str) -> None:
        """Creates the error."""
        super().__init__(f"the record at {position} is refused: {why} {remedy}", reason="RECORD_REFUSED")
        self.position = position


class TopicReplaced(BridgeError):
    """A topic was deleted and created anew, or went back in time; what was not carried of the earlier one is gone."""
