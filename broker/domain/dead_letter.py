"""Dead letters: messages that a group could not handle, and the record of their origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEAD_LETTER_PREFIX = "%DLQ%"
_TOPIC, _QUEUE, _OFFSET = "halfmq.origin-topic", "halfmq.origin-queue", "halfmq.origin-offset"
_ATTEMPTS, _REASON, _CLIENT = "halfmq.attempts", "halfmq.reason", "halfmq.client-id"


def dead_letter_topic(group: str) -> str:
    """Name of a group's dead letter topic."""
    return DEAD_LETTER_PREFIX + group


@dataclass(frozen=True, slots=True)
class Origin:
    """A dead letter's origin, number of deliveries, and reason.

    Attributes:
        client_id: in a broadcasting group, the consumer that could not handle it.
    """

    topic: str
    queue_no: int
    offset: int
    attempts: int
    reason: str
    client_id: str = ""

    def added_to(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Properties of a message, with its origin added."""
        told = {
            **without_origin(properties),
            _TOPIC: self.topic,
            _QUEUE: str(self.queue_no),
            _OFFSET: str(self.offset),
            _ATTEMPTS: str(self.attempts),
            _REASON: self.reason,
        }
        if self.client_id:
            told[_CLIENT] = self.client_id
        return told


def origin_of(properties: Mapping[str, str]) -> Origin | None:
    """A dead letter's origin, from its properties; None for any other message."""
    try:
        return Origin(
            properties[_TOPIC],
            int(properties[_QUEUE]),
            int(properties[_OFFSET]),
            int(properties[_ATTEMPTS]),
            properties[_REASON],
            properties.get(_CLIENT, ""),
        )
    except (KeyError, ValueError):
        return None


def without_origin(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a message had before it became a dead letter."""
    own = {_TOPIC, _QUEUE, _OFFSET, _ATTEMPTS, _REASON, _CLIENT}
    return {name: value for name, value in properties.items() if name not in own}
