"""What a request is about, for the log: ids and names among its fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAMES = {
    "transaction_id": "transaction_id",
    "message_id": "message_id",
    "topic": "topic",
    "group": "group",
    "consumer_group": "group",
    "producer_group": "group",
}
"""The key in the log by the name of a field, in requests of either protocol."""
SEVERAL = {"transaction_ids": "transaction_ids", "message_ids": "message_ids"}
INSIDE = ("messages", "transactions", "entries")
"""Fields whose entries have ids of their own."""
MOST_IDS = 20
LONGEST = 200
"""Characters of a text: a client chooses it, and nothing has been checked."""


def ids_of_request(request: Any) -> dict[str, object]:
    """Ids and names that a request has; those of its messages or transactions under the plural of the key.

    Args:
        request: a message of protobuf; anything else has none.
    """
    if not hasattr(request, "DESCRIPTOR"):
        return {}
    found: dict[str, object] = dict(_own(request))
    for field, key in SEVERAL.items():
        if given := getattr(request, field, ()):
            found[key] = [str(each)[:LONGEST] for each in given[:MOST_IDS]]
    of_parts: dict[str, dict[str, None]] = {}
    for field in INSIDE:
        # In some requests it is a number.
        parts = getattr(request, field, ())
        for part in parts[:MOST_IDS] if isinstance(parts, Sequence) else ():
            for key, text in _own(part):
                of_parts.setdefault(key, {})[text] = None
    for key, texts in of_parts.items():
        if len(texts) == 1:
            found.setdefault(key, next(iter(texts)))
        else:
            found.setdefault(f"{key}s", list(texts))
    return found


def _own(message: Any) -> list[tuple[str, str]]:
    """Of a message itself, and of what the protocol of RocketMQ has in its system properties."""
    parts = [message, getattr(message, "system_properties", None)]
    found = []
    for part in parts:
        for field, key in NAMES.items():
            given = getattr(part, field, "")
            text = given if isinstance(given, str) else getattr(given, "name", "")
            if text:
                found.append((key, str(text)[:LONGEST]))
    return found
