"""Rows that are too large for a message: what the error names, so that the row is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from halfmq_connect.cdc.errors import CannotFollow
from halfmq_connect.cdc.messages import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from halfmq.v1.message_pb2 import Message

__all__ = ["REMEDY", "check_size", "described", "key_of"]

LARGEST = 16 * 1024 * 1024
"""Bytes of a message on the wire that no broker takes: a body has 15 MiB at most, whatever its settings."""
_LONGEST_KEY = 300
REMEDY = (
    "Nothing was skipped. Leave the column out (exclude_columns), or the table, and start it again: it goes on there"
)


def check_size(size: int, table: str, key: str, place: str) -> None:
    """Refuses a message that cannot be sent to any broker.

    Args:
        size: Its bytes on the wire.
        table: Database and table of its row.
        key: The row's primary key; see key_of.
        place: Where the row was read.

    Raises:
        CannotFollow: It names the row.
    """
    if size > LARGEST:
        msg = (
            f"the row {key} of {table} is too large, at {place}: its message has {size} bytes, and a body has 15 MiB at"
            f" most (max_body_bytes of the broker). {REMEDY}"
        )
        raise CannotFollow(msg)


def key_of(names: Sequence[str], values: Sequence[Any]) -> str:
    """A primary key as errors name it."""
    text = encode(dict(zip(names, values, strict=True)))
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}..."


def described(message: Message) -> str:
    """Which row a message tells of, as far as the message has it: an outbox's messages are what users wrote."""
    try:
        told = json.loads(message.body)
        source = told["source"]
        table = f"{source['database']}.{source['table']}"
        names = told["schema"]["key"]
        row = told["after"] or told["before"]
        key = key_of(names, [row[name] for name in names])
        if source["gtid"] is None:
            place = f"the snapshot at {source['snapshot']}"
        else:
            place = f"{source['gtid']}, {source['file']}:{source['position']}"
        if message.properties["table"] == table:
            return f"the row {key} of {table}, at {place}"
    except (ValueError, LookupError, TypeError):
        pass
    told_of = "".join(f", {name} {value!r}" for name, value in _labels(message) if value)
    return f"the message for {message.topic!r} of {len(message.body)} bytes{told_of}"


def _labels(message: Message) -> list[tuple[str, str]]:
    return [("tag", message.tag), ("group", message.message_group), ("keys", ", ".join(message.keys))]
