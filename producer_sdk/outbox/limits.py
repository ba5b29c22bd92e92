"""What a broker would refuse, refused where the message is put: later nobody is there to correct it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NoReturn

from client_core.arguments import NAME
from client_core.errors import RequestRefused

if TYPE_CHECKING:
    from halfmq.v1 import message_pb2 as pb

__all__ = ["MAX_BODY", "check_message"]

MAX_BODY = 4 << 20
"""Bytes of a body, unless the brokers are configured otherwise."""
MAX_TOPIC_NAME = 127
MAX_TAG_BYTES = 16 << 10
SHORT_TAG = 255
MAX_MESSAGE_GROUP_BYTES = 64
MAX_DEDUP_KEY_BYTES = 255
MAX_KEYS = 1000
MAX_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16 << 10
RESERVED = "halfmq."

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_message(message: pb.Message, max_body: int = MAX_BODY) -> None:
    """Refuses a message that no broker would store.

    Raises:
        RequestRefused: Names the field and the limit.
    """
    size = len(message.body)
    if not size:
        _refuse("the body is empty; a message needs at least one byte", "body")
    if size > max_body:
        text = f"the body has {size} bytes; {max_body} are allowed: store large content elsewhere, send its key"
        _refuse(text, "body", "BODY_TOO_LARGE")
    if not NAME.fullmatch(message.topic) or len(message.topic) > MAX_TOPIC_NAME:
        text = (
            f"a topic has a name of up to {MAX_TOPIC_NAME} of the characters a-z, A-Z, 0-9, '-', '_', '%' and '|', not "
            f"{message.topic[:200]!r}"
        )
        _refuse(text, "topic", "NAME_INVALID")
    if message.tag:
        _check_label(message.tag, "tag", MAX_TAG_BYTES)
        if "|" in message.tag:
            _refuse("a tag must not contain '|'", "tag")
    if message.message_group:
        _check_label(message.message_group, "message_group", MAX_MESSAGE_GROUP_BYTES)
    if message.dedup_key:
        _check_label(message.dedup_key, "dedup_key", MAX_DEDUP_KEY_BYTES)
    if message.keys or message.properties or len(message.tag) > SHORT_TAG:
        _check_headers(message)


def _check_headers(message: pb.Message) -> None:
    total = len(message.tag.encode()) if len(message.tag) > SHORT_TAG else 0
    if len(message.properties) > MAX_PROPERTIES:
        text = f"{len(message.properties)} properties; {MAX_PROPERTIES} are allowed"
        _refuse(text, "properties", "PROPERTIES_TOO_LARGE")
    if len(message.keys) > MAX_KEYS:
        _refuse(f"{len(message.keys)} keys; {MAX_KEYS} are allowed", "keys", "PROPERTIES_TOO_LARGE")
    for key in message.keys:
        _check_label(key, "keys", MAX_PROPERTIES_BYTES)
        total += len(key.encode())
    for name, value in message.properties.items():
        _check_label(name, "properties", MAX_PROPERTIES_BYTES)
        if name.startswith(RESERVED):
            _refuse(f"the property {name!r}: names that start with {RESERVED!r} are the broker's own", "properties")
        if _CONTROL.search(value):
            _refuse(f"the property {name!r} has a control character in its value", "properties")
        total += len(name.encode()) + len(value.encode())
    if total > MAX_PROPERTIES_BYTES:
        text = (
            f"keys, properties and a tag of more than {SHORT_TAG} characters have {total} bytes; "
            f"{MAX_PROPERTIES_BYTES} are allowed"
        )
        _refuse(text, "properties", "PROPERTIES_TOO_LARGE")


def _check_label(value: str, field: str, longest: int) -> None:
    if not value:
        _refuse(f"an empty text is not allowed in {field}; leave it out", field)
    size = len(value.encode())
    if size > longest:
        _refuse(f"{field} has {size} bytes; {longest} are allowed", field)
    if _CONTROL.search(value):
        _refuse(f"control characters are not allowed in {field}", field)


def _refuse(text: str, field: str, reason: str = "INVALID_ARGUMENT") -> NoReturn:
    raise RequestRefused(text, reason=reason, field=field)
