"""The index of messages by their business keys: one row for each distinct key of a message in the log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from broker.domain.keys import key_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Statement

COLUMNS = "topic_id, key_hash, queue_id, log_offset"

Entry: TypeAlias = tuple[int, int, int, int]
"""The values of COLUMNS."""


def entries(topic_id: int, queue_id: int, offset: int, keys: Iterable[str]) -> list[Entry]:
    """The rows of a message."""
    return [(topic_id, each, queue_id, offset) for each in {key_hash(key) for key in keys}]


def stored_entries(topic_id: int, queue_id: int, offset: int, message_keys: str | None) -> list[Entry]:
    """The rows of a message whose keys come from its own row."""
    return entries(topic_id, queue_id, offset, json.loads(message_keys)) if message_keys else []


def insertion(session: Session, new: Sequence[Entry]) -> list[Statement]:
    """Statements that add rows, if any."""
    return session.insertion("message_key", COLUMNS, sorted(new)) if new else []


def deletion(session: Session, old: Sequence[Entry]) -> list[Statement]:
    """Statements that delete rows by primary key, if any."""
    return session.deletion_of("message_key", COLUMNS, sorted(old))
