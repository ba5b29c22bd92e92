"""The dead letter topic of a group: messages that could not be handled, with origin and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.dead_letter import Origin, dead_letter_topic
from broker.domain.ids import message_id
from broker.domain.topic import TopicSettings
from broker.errors import AlreadyExists, NotFound
from broker.storage.catalog import topics
from broker.storage.catalog.directory import read_by_name
from broker.storage.log import republish
from broker.storage.log.fitting import pieces_of, read_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.lease import Lease
    from broker.domain.topic import Topic
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session


@dataclass(frozen=True, slots=True)
class Buried:
    """Position of a dead letter; `size`: bytes of its body."""

    queue_id: int
    offset: int
    message_id: str
    size: int


def move(
    session: Session,
    group: ConsumerGroup,
    lease: Lease,
    offsets: Sequence[int],
    reason: str,
    now: int,
    directory: Directory,
) -> dict[int, Buried]:
    """Copies messages of a lease to the group's dead letter topic; returns their positions by original offset.

    A message keeps its identity and content; its origin is added as properties that start with "halfmq.". The dead
    letter of one whose body is broken has the stored form for its body, and the cause for its reason.
    """
    place = directory.of_queue(session, lease.queue_id)
    if place is None:
        return {}  # The topic was deleted, and its messages with it.
    topic, queue_no = place
    name = dead_letter_topic(group.name)
    target = _target(session, name, topic.retention, now, directory)
    places = {}
    for piece in pieces_of(session, lease.queue_id, sorted(offsets)):
        copied = []
        for message in read_offsets(session, topic.name, queue_no, lease.queue_id, piece):
            why = message.broken or reason
            origin = Origin(topic.name, queue_no, message.offset, lease.attempt, why, group.client_id)
            copied.append((message, origin.added_to(message.properties)))
        if not copied:
            continue
        try:
            first = republish.append(session, target, target.queue_ids[0], copied, now)
        except NotFound:
            # Another broker deleted the one in this broker's cache.
            directory.forget(target)
            target = _target(session, name, topic.retention, now, directory)
            first = republish.append(session, target, target.queue_ids[0], copied, now)
        for offset, (message, _) in enumerate(copied, first):
            identity = message_id(message.transaction_id, message.position)
            places[message.offset] = Buried(target.queue_ids[0], offset, identity, message.size)
    return places


def _target(session: Session, name: str, retention: int, now: int, directory: Directory) -> Topic:
    """The dead letter topic; re-created if it was deleted, because its group could not continue without it."""
    # Read without the cache: the topic may have been created in this very transaction, which may be rolled back.
    found = directory.peek(name) or read_by_name(session, name)
    if found is not None:
        return found
    try:
        return topics.create_topic(session, name, TopicSettings(queue_count=1, retention=retention), now)
    except AlreadyExists:
        found = read_by_name(session, name)
        if found is None:
            raise
        return found
