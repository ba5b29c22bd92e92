"""What commands find as JSON: the attributes of the SDK, times in ISO 8601 (UTC), durations in seconds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from client_core.filters import SqlFilter, TagFilter
from client_core.message import Message
from client_core.stored import StoredMessage
from halfmq_cli.admin.plain import iso

if TYPE_CHECKING:
    from collections.abc import Callable

_STORED = (
    "message_id",
    "topic",
    "queue",
    "offset",
    "transaction_id",
    "tag",
    "keys",
    "properties",
    "message_group",
    "priority",
    "born_at",
    "stored_at",
    "deliver_at",
    "dedup_key",
)


def json_line(value: Any) -> str:
    """A value in one line of JSON."""
    # ASCII only: what clients sent must not move the cursor of a terminal.
    return json.dumps(as_json(value))


def as_json(value: Any) -> Any:
    """A value of the SDK as JSON knows values."""
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, Enum)):
        return value
    for kind, write in _FORMS:
        if isinstance(value, kind):
            return write(value)
    return _object(value)


def _object(value: Any) -> Any:
    if isinstance(value, TagFilter):
        return {"tags": value.tags}
    if isinstance(value, SqlFilter):
        return {"sql": value.condition}
    if isinstance(value, StoredMessage):
        return {**{name: as_json(getattr(value, name)) for name in _STORED}, **_body(value.body)}
    if not is_dataclass(value) or isinstance(value, type):
        return str(value)
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Message):
        body = found.pop("body")
        return {**as_json(found), **_body(body.encode() if isinstance(body, str) else body)}
    return as_json(found)


def _body(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"body": as_json(body), "size": len(body)}
    try:
        found["text"] = body.decode()
    except UnicodeDecodeError:
        found["text"] = None
    return found


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.name),
    (datetime, iso),
    (timedelta, timedelta.total_seconds),
    (bytes, lambda value: base64.b64encode(value).decode()),
    (Mapping, lambda value: {str(name): as_json(each) for name, each in value.items()}),
    (Sequence, lambda value: [as_json(each) for each in value]),
)
