"""Appends new messages to their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.domain.place import InLog
from broker.storage.log import keys
from broker.storage.log.offsets import take_offsets
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import Message
    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Statement


class Appended(NamedTuple):
    """A message for a queue, and the transaction that it is part of, at a position."""

    queue_id: int
    topic_id: int
    transaction_id: bytes
    position: int
    message: Message


def append(session: Session, new: Sequence[Appended], now: int) -> tuple[list[InLog], list[Statement]]:
    """Takes the offsets of messages, in their order; returns their places, and the statements that insert them.

    The queues stay locked until the transaction ends.
    """
    wanted: dict[int, tuple[int, int]] = {}
    for each in new:
        count, size = wanted.get(each.queue_id, (0, 0))
        wanted[each.queue_id] = (count + 1, size + len(each.message.body))
    following = take_offsets(session, wanted)
    places, messages = [], []
    entries: list[keys.Entry] = []
    for queue_id, topic_id, transaction_id, position, message in new:
        offset = following[queue_id]
        following[queue_id] = offset + 1
        places.append(InLog(queue_id, offset))
        messages.append((queue_id, offset, transaction_id, position, *rows.content(message), now, now))
        if message.keys:
            entries += keys.entries(topic_id, queue_id, offset, message.keys)
    insertions = session.insertion("message", rows.MESSAGE_COLUMNS, messages)
    return places, [*insertions, *keys.insertion(session, entries)]
