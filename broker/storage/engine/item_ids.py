"""Ids of a lane's items, for the log: what they are about, under the names that log lines have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.ids import format_id, message_id

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_IDS = 20
"""Ids of a kind in a line that is about several."""


def ids_of(item: Any) -> dict[str, str]:
    """What an item names: transaction or message, client, group and topic; nothing of what it does not have.

    Args:
        item: of any lane; lanes know nothing of what their items are.
    """
    found: dict[str, str] = {}
    transaction_id = getattr(item, "transaction_id", None)
    position = getattr(item, "position", None)
    if transaction_id is not None and position is not None:
        found["message_id"] = message_id(transaction_id, position)
    elif transaction_id is not None:
        found["transaction_id"] = format_id(transaction_id)
    elif isinstance(own := getattr(item, "message_id", None), bytes):
        found["message_id"] = format_id(own)
    if client_id := getattr(item, "owner", None):
        found["client_id"] = client_id
    if (group := getattr(getattr(item, "group", None), "name", None)) is not None:
        found["group"] = group
    if (topic := getattr(getattr(item, "message", item), "topic", None)) is not None:
        found["topic"] = topic
    return found


def ids_of_all(items: Iterable[Any]) -> dict[str, object]:
    """What several items name: the one id if all have the same, or the first ones under the plural of its name."""
    found: dict[str, dict[str, None]] = {}
    for item in items:
        for name, value in ids_of(item).items():
            values = found.setdefault(name, {})
            if len(values) < MOST_IDS:
                values[value] = None
    shown: dict[str, object] = {}
    for name, values in found.items():
        if len(values) == 1:
            shown[name] = next(iter(values))
        else:
            shown[f"{name}s"] = list(values)
    return shown
