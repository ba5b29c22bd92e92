"""The wire form of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from client_core.message import Message
from client_core.times import as_duration, as_timestamp, read_span, read_time
from halfmq.v1 import message_pb2 as pb

if TYPE_CHECKING:
    from datetime import datetime

    from client_core.times import Span

__all__ = ["encode_message", "from_wire", "to_wire"]

# A topic has ten priorities at most.
_HIGHEST_PRIORITY = 9


def encode_message(
    topic: str,
    body: bytes | str,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    message_group: str | None,
    message_id: str | None = None,
    *,
    deliver_at: datetime | None = None,
    delay: Span | None = None,
    priority: int = 0,
    dedup_key: str | None = None,
) -> pb.Message:
    """Makes the wire form at once, so that a wrong type fails only its caller and not the whole batch.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A text cannot be written in UTF-8, a time has no time zone, or two arguments exclude each other.
    """
    try:
        if isinstance(body, str):
            body = body.encode()
        elif not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                msg = f"the body of a message is bytes or str, not {type(body).__name__}; encode it first"
                raise TypeError(msg)
            body = bytes(body)
        if isinstance(keys, str):
            keys = (keys,)
        message = pb.Message(
            topic=topic,
            body=body,
            tag=tag or "",
            keys=keys or None,
            properties=properties or None,
            message_group=message_group or "",
            message_id=message_id or "",
        )
    except (TypeError, ValueError, AttributeError):
        # Only after protobuf's own fast check failed: to name the argument.
        _refuse_by_name(topic, body, tag or "", keys, properties or {}, message_group or "")
        raise
    if deliver_at is not None or delay is not None:
        _set_time(message, deliver_at, delay)
    if priority != 0:
        message.priority = _checked_priority(priority, message_group)
    if dedup_key is not None:
        _refuse_unless_text("the dedup_key of a message", dedup_key)
        if not dedup_key:
            msg = "the dedup_key of a message is empty; give its business identity, or None where it has none"
            raise ValueError(msg)
        message.dedup_key = dedup_key
    return message


def _set_time(message: pb.Message, deliver_at: datetime | None, delay: Span | None) -> None:
    if deliver_at is not None and delay is not None:
        msg = "the deliver_at and the delay of a message both say when it is delivered; give one of them"
        raise ValueError(msg)
    if deliver_at is not None:
        message.deliver_at.CopyFrom(as_timestamp("the deliver_at of a message", deliver_at))
    else:
        message.delay.CopyFrom(as_duration("the delay of a message", delay))


def _checked_priority(priority: object, message_group: str | None) -> int:
    rule = f"the priority of a message is a whole number from 0 to {_HIGHEST_PRIORITY}, not {priority!r}"
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(rule)
    if not 0 <= priority <= _HIGHEST_PRIORITY:
        raise ValueError(rule)
    if message_group:
        msg = (
            f"the priority of a message cannot be {priority} when it has a message_group, which keeps its order; "
            "leave one of them out"
        )
        raise ValueError(msg)
    return priority


def _refuse_by_name(topic: object, body: object, tag: object, keys: object, properties: object, group: object) -> None:
    if isinstance(body, str):
        _refuse_unless_text("the body of a message", body)
    for name, value in (("topic", topic), ("tag", tag), ("message_group", group)):
        _refuse_unless_text(f"the {name} of a message", value)
    if not isinstance(keys, Iterable) or isinstance(keys, bytes):
        msg = f"the keys of a message are texts, such as ['order-7'], not {keys!r}"
        raise TypeError(msg)
    for key in keys:
        _refuse_unless_text("a key of a message", key)
    if not isinstance(properties, Mapping):
        msg = f"the properties of a message are a mapping of texts to texts, not {properties!r}"
        raise TypeError(msg)
    for name, value in properties.items():
        _refuse_unless_text("the name of a message's property", name)
        _refuse_unless_text(f"the value of a message's property {name!r}", value)


def _refuse_unless_text(what: str, value: object) -> None:
    if not isinstance(value, str):
        msg = f"{what} is text, not {type(value).__name__}: {value!r}"
        raise TypeError(msg)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} cannot be written in UTF-8: {error}"
        raise ValueError(msg) from None


def to_wire(message: Message, message_id: str | None = None) -> pb.Message:
    """Makes the wire form of a message.

    Args:
        message: The message.
        message_id: Its id, where it is an ordinary message; None: it is a half message.

    Raises:
        TypeError: A part of it is of the wrong type.
        ValueError: A part of it is invalid, or it is a half message with an id.
    """
    if message_id is None and message.message_id is not None:
        msg = (
            f"the message_id {message.message_id!r} is for ordinary messages: a half message is named by its "
            "transaction; leave it out, and give prepare a transaction_id"
        )
        raise ValueError(msg)
    return encode_message(
        message.topic,
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.message_group,
        message_id,
        deliver_at=message.deliver_at,
        delay=message.delay,
        priority=message.priority,
        dedup_key=message.dedup_key,
    )


def from_wire(message: pb.Message) -> Message:
    """Reads the wire form of a message."""
    return Message(
        topic=message.topic,
        body=message.text.encode() if message.WhichOneof("content") == "text" else message.body,
        tag=message.tag or None,
        keys=tuple(message.keys),
        properties=dict(message.properties),
        message_group=message.message_group or None,
        deliver_at=read_time(message.deliver_at),
        delay=read_span(message.delay) if message.HasField("delay") else None,
        priority=message.priority,
        dedup_key=message.dedup_key or None,
    )
