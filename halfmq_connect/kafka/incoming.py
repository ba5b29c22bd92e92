"""Records of Kafka as messages of halfmq: docs/ways/kafka.md has the table."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING

from halfmq.v1 import message_pb2

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["LARGEST_BODY", "LARGEST_MESSAGE", "is_over", "message_of", "record_size"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LONGEST_GROUP = 64
"""Bytes of a message group in halfmq."""
_ABSENT = b"\0"
"""Stands for a value that a message of halfmq cannot have: it has at least one byte."""
LARGEST_BODY = 15 * 1024 * 1024
"""Bytes that no broker's limit is above (max_body_bytes)."""
LARGEST_MESSAGE = LARGEST_BODY + 1024 * 1024
"""With all that it has besides."""
_LARGEST_HEADERS = 16 * 1024
"""Bytes of names and values; see docs/configuration.md."""
_OF_HALFMQ = "halfmq."
_RESTORED = {"halfmq.tag", "halfmq.message_group", "halfmq.key"}


def message_of(record: Message, topic: str, key_as: str) -> message_pb2.Message:
    """The message of a record; one that came from halfmq gets its tag, keys and message group back."""
    value, key = record.value(), record.key()
    headers = _headers(record)
    message = message_pb2.Message(topic=topic, body=value or _ABSENT)
    properties = message.properties
    properties["kafka.position"] = f"{record.topic()}/{record.partition()}/{record.offset()}"
    properties["kafka.timestamp"] = str(record.timestamp()[1])
    if not value:
        properties["kafka.value"] = "null" if value is None else "empty"
    restored = any(name == "halfmq.position" for name, _ in headers)
    _set_headers(message, headers, restored=restored)
    if key and not restored:
        _set_key(message, key, key_as)
    return message


def record_size(record: Message) -> int:
    """Bytes of a record: its key, its headers and its value."""
    return len(record.key() or b"") + len(record.value() or b"") + _headers_size(record)


def is_over(record: Message) -> bool:
    """Whether a record is over halfmq's limits, about; the broker decides."""
    return len(record.value() or b"") > LARGEST_BODY or _headers_size(record) > _LARGEST_HEADERS


def _headers_size(record: Message) -> int:
    return sum(len(name) + len(value) for name, value in _headers(record))


def _headers(record: Message) -> list[tuple[str, bytes]]:
    found = record.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def _set_key(message: message_pb2.Message, key: bytes, key_as: str) -> None:
    text = _text(key)
    if key_as == "message_group":
        fits = text is not None and len(key) <= _LONGEST_GROUP
        message.message_group = text if text is not None and fits else hashlib.sha256(key).hexdigest()
        if fits:
            return
    elif key_as == "key" and text is not None:
        message.keys.append(text)
        return
    _set_property(message, "kafka.key", key)


def _set_headers(message: message_pb2.Message, headers: list[tuple[str, bytes]], *, restored: bool) -> None:
    seen: Counter[str] = Counter()
    for name, value in headers:
        text = _text(value)
        if restored and name in _RESTORED and text:
            if name == "halfmq.tag":
                message.tag = text
            elif name == "halfmq.message_group":
                message.message_group = text
            else:
                message.keys.append(text)
            continue
        # The broker keeps names that begin with "halfmq." to itself.
        own = f"origin.{name.removeprefix(_OF_HALFMQ)}" if name.startswith(_OF_HALFMQ) else name
        seen[own] += 1
        _set_property(message, own if seen[own] == 1 else f"{own}.{seen[own]}", value)


def _set_property(message: message_pb2.Message, name: str, value: bytes) -> None:
    text = _text(value)
    if text is None:
        message.properties[f"{name}.base64"] = base64.b64encode(value).decode()
    else:
        message.properties[name] = text


def _text(value: bytes) -> str | None:
    """The text that halfmq can hold, if it is one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
