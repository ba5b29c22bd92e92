"""Appends new messages to their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.domain.place import InLog
from broker.storage.log import keys, queue_ends
from broker.storage.log.offsets import take_offsets
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.message import Message
    from broker.domain.topic import Compression
    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Statement
    from broker.storage.log.queue_ends import QueueEnds


class Appended(NamedTuple):
    """A message for a queue, and the transaction that it is part of, at a position; `compression` is its topic's."""

    queue_id: int
    topic_id: int
    transaction_id: bytes
    position: int
    message: Message
    compression: Compression


class Plan(NamedTuple):
    """Messages with their offsets: their places, and the statements that insert them.

    The first offset that was taken of each queue, and the one after the last, are in `taken`.
    """

    places: list[InLog]
    statements: list[Statement]
    taken: dict[int, tuple[int, int]]


def append(session: Session, new: Sequence[Appended], now: int) -> Plan:
    """Takes the offsets of messages, in their order. The queues stay locked until the transaction ends."""
    contents = _contents(new)  # Before the locks: compression takes time.
    return _plan(session, new, contents, now, take_offsets(session, _wanted(new)))


def append_by_guess(session: Session, new: Sequence[Appended], now: int, ends: QueueEnds) -> Plan | None:
    """As `append`, with guessed offsets, which the statements take; None where they cannot be guessed."""
    wanted = _wanted(new)
    guessed = ends.guess(wanted)
    if guessed is None:
        return None
    places, statements, taken = _plan(session, new, _contents(new), now, guessed)
    return Plan(places, queue_ends.taking(guessed, wanted) + statements, taken)


def _wanted(new: Sequence[Appended]) -> dict[int, tuple[int, int]]:
    """How many are for each queue, with the bytes of their bodies."""
    wanted: dict[int, tuple[int, int]] = {}
    for each in new:
        count, size = wanted.get(each.queue_id, (0, 0))
        wanted[each.queue_id] = (count + 1, size + len(each.message.body))
    return wanted


def _contents(new: Sequence[Appended]) -> list[tuple[Any, ...]]:
    return [rows.content(each.message, each.compression) for each in new]


def _plan(
    session: Session, new: Sequence[Appended], contents: Sequence[tuple[Any, ...]], now: int, first: Mapping[int, int]
) -> Plan:
    following = dict(first)
    places, messages = [], []
    entries: list[keys.Entry] = []
    for (queue_id, topic_id, transaction_id, position, message, _), content in zip(new, contents, strict=True):
        offset = following[queue_id]
        following[queue_id] = offset + 1
        places.append(InLog(queue_id, offset))
        messages.append((queue_id, offset, transaction_id, position, *content, now, now))
        if message.keys:
            entries += keys.entries(topic_id, queue_id, offset, message.keys)
    insertions = session.insertion("message", rows.MESSAGE_COLUMNS, messages)
    taken = {queue_id: (offset, following[queue_id]) for queue_id, offset in first.items()}
    return Plan(places, [*insertions, *keys.insertion(session, entries)], taken)
