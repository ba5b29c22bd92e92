"""The dead letter topic of a group: what could not be handled, with where it came from and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.ids import message_id
from broker.domain.message import Message
from broker.domain.retry import dead_letter_topic
from broker.errors import AlreadyExists
from broker.storage import rows, topics
from broker.storage.log import read_range, take_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.lease import Lease
    from broker.domain.topic import ConsumerGroup, Topic
    from broker.storage.directory import Directory
    from broker.storage.session import Session


@dataclass(frozen=True, slots=True)
class Place:
    """Where a dead letter lies."""

    queue_id: int
    offset: int
    message_id: str


def move(
    session: Session,
    group: ConsumerGroup,
    lease: Lease,
    offsets: Sequence[int],
    reason: str,
    now: int,
    directory: Directory,
) -> dict[int, Place]:
    """Copies messages of a lease to the group's dead letter topic; their places by original offset.

    The message keeps its identity and content; where it came from is added as properties that start with "halfmq.".
    """
    origin = directory.of_queue(session, lease.queue_id)
    if origin is None:
        return {}  # The topic was deleted, and its messages with it.
    topic, queue_no = origin
    target = _target(session, dead_letter_topic(group.name), topic.retention, now, directory)
    wanted = set(offsets)
    found = [
        message
        for message in read_range(session, topic.name, queue_no, lease.queue_id, lease.first, lease.count)
        if message.offset in wanted
    ]
    if not found:
        return {}
    queue_id = target.queue_ids[0]
    first = take_offsets(session, {queue_id: len(found)})[queue_id]
    places: dict[int, Place] = {}
    new = []
    for following, message in enumerate(found, first):
        properties = {
            **message.properties,
            "halfmq.origin-topic": topic.name,
            "halfmq.origin-queue": str(queue_no),
            "halfmq.origin-offset": str(message.offset),
            "halfmq.attempts": str(lease.attempt),
            "halfmq.reason": reason,
        }
        copy = Message(target.name, message.body, message.tag, tuple(message.keys), properties, message.message_group)
        new.append(
            (
                queue_id,
                following,
                message.transaction_id,
                message.position,
                *rows.content(copy),
                message.born_at,
                now,
            )
        )
        places[message.offset] = Place(queue_id, following, message_id(message.transaction_id, message.position))
    session.insert("message", rows.MESSAGE_COLUMNS, new)
    return places


def _target(session: Session, name: str, retention: int, now: int, directory: Directory) -> Topic:
    """The dead letter topic; made again when somebody deleted it, for its group could not go on without."""
    found = directory.by_name(session, name)
    if found is not None:
        return found
    try:
        return topics.create_topic(session, name, 1, retention, now)
    except AlreadyExists:
        found = directory.by_name(session, name)
        if found is None:
            raise
        return found
