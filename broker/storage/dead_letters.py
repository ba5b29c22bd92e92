"""The dead letter topic of a group: what could not be handled, with where it came from and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.domain.ids import message_id
from broker.domain.lease import Lease
from broker.domain.message import Message
from broker.domain.retry import dead_letter_topic
from broker.domain.topic import ConsumerGroup
from broker.errors import NotFound
from broker.storage import rows
from broker.storage.directory import Directory
from broker.storage.log import read_range, take_offsets
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
    target = directory.by_name(session, dead_letter_topic(group.name))
    if origin is None or target is None:
        raise NotFound(
            f"The dead letter topic {dead_letter_topic(group.name)!r} does not exist; create it.",
            reason="TOPIC_NOT_FOUND",
            field="topic",
        )
    topic, queue_no = origin
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
