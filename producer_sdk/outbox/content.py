"""A message as the columns of a row, and back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from client_core.encoding import to_wire
from client_core.ids import sent_id
from client_core.message import Message
from client_core.times import from_micros, read_span, read_time, to_micros
from producer_sdk.outbox.limits import check_message

__all__ = ["Content", "content_of", "message_of"]


@dataclass(frozen=True, slots=True)
class Content:
    """What a row has of a message; ``headers`` is what has no column of its own."""

    message_id: str
    topic: str
    message_group: str | None
    headers: dict[str, Any]
    body: bytes

    def columns(self) -> dict[str, Any]:
        """The columns of the outbox's own table, by name."""
        return {
            "message_id": self.message_id,
            "topic": self.topic,
            "message_group": self.message_group,
            "headers": json.dumps(self.headers) if self.headers else None,
            "size": len(self.body),
            "body": self.body,
        }


def content_of(message: Message, max_body: int, message_id: str | None = None) -> Content:
    """Validates a message as ``send`` does, and as a broker would.

    A delay counts from now on.

    Raises:
        RequestRefused: It breaks a limit.
        TypeError: A part of it is of the wrong type.
        ValueError: A part of it is invalid.
    """
    if not isinstance(message, Message):
        msg = f"the outbox takes a producer_sdk.Message, not {type(message).__name__}: {message!r}"
        raise TypeError(msg)
    wire = to_wire(message, sent_id(message_id if message_id is not None else message.message_id))
    check_message(wire, max_body)
    headers: dict[str, Any] = {}
    if wire.tag:
        headers["tag"] = wire.tag
    if wire.keys:
        headers["keys"] = list(wire.keys)
    if wire.properties:
        headers["properties"] = dict(wire.properties)
    if wire.priority:
        headers["priority"] = wire.priority
    if wire.dedup_key:
        headers["dedup_key"] = wire.dedup_key
    deliver_at = read_time(wire.deliver_at)
    if wire.HasField("delay"):
        deliver_at = datetime.now(UTC) + read_span(wire.delay)
    if deliver_at is not None:
        headers["deliver_at"] = to_micros(deliver_at)
    return Content(wire.message_id, wire.topic, wire.message_group or None, headers, wire.body)


def message_of(message_id: str, topic: str, message_group: str | None, headers: str | None, body: bytes) -> Message:
    """The message that a row holds."""
    if not headers:
        return Message(topic, body, message_group=message_group, message_id=message_id)
    found: dict[str, Any] = json.loads(headers)
    deliver_at = found.get("deliver_at")
    return Message(
        topic,
        body,
        tag=found.get("tag"),
        keys=tuple(found.get("keys", ())),
        properties=found.get("properties", {}),
        message_group=message_group,
        deliver_at=from_micros(deliver_at) if deliver_at is not None else None,
        priority=found.get("priority", 0),
        dedup_key=found.get("dedup_key"),
        message_id=message_id,
    )
