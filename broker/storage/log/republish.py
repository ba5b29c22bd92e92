"""Appends messages of the log again: as dead letters, or to their topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.message import Message
from broker.storage.log import keys
from broker.storage.log.offsets import take_offsets
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import LogMessage
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session


def append(
    session: Session, topic: Topic, queue_id: int, copied: Sequence[tuple[LogMessage, dict[str, str]]], now: int
) -> int:
    """Appends messages, with these properties, to a queue; identity and content are kept. Returns the first offset."""
    size = sum(len(message.body) for message, _ in copied)
    first = take_offsets(session, {queue_id: (len(copied), size)})[queue_id]
    new, entries = [], []
    for offset, (message, properties) in enumerate(copied, first):
        copy = Message(topic.name, message.body, message.tag, tuple(message.keys), properties, message.message_group)
        values = (
            message.transaction_id,
            message.position,
            *rows.content(copy, topic.compression),
            message.born_at,
            now,
        )
        new.append((queue_id, offset, *values))
        entries += keys.entries(topic.topic_id, queue_id, offset, message.keys)
    session.execute_all([*session.insertion("message", rows.MESSAGE_COLUMNS, new), *keys.insertion(session, entries)])
    return first
