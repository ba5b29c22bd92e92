"""Deletes dead letters that operators do not need any more, in small batches by primary key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.groups import Purged
from broker.storage.delivery.redrive import letters_of
from broker.storage.log.offsets_by_time import offset_at
from broker.storage.retention.trimming import CHUNK, drop_oldest, oldest_messages

if TYPE_CHECKING:
    from broker.ports.groups import Purge
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session


def purge(session: Session, wanted: Purge, directory: Directory) -> Purged:
    """Deletes up to CHUNK of a group's oldest dead letters, or counts all of them.

    Raises:
        NotFound: the group has no dead letter topic.
        StartOver: another broker deletes there.
    """
    topic, queue_id, low, high = letters_of(session, wanted.group, directory)
    own = topic.topic_id
    if wanted.topic_id not in {None, own}:
        return Purged(0, low, done=True, topic_id=own)
    end = high if wanted.end is None else min(high, wanted.end)
    if wanted.before is not None:
        end = min(end, offset_at(session, queue_id, wanted.before, low, high))
    if wanted.dry_run:
        # Offsets are dense but for gaps.
        return Purged(topic.gaps_of(queue_id).count(low, end), end, done=True, topic_id=own)
    some = [message for message in oldest_messages(session, queue_id, low, CHUNK) if message.offset < end]
    if not some:
        return Purged(0, end, done=True, topic_id=own)
    drop_oldest(session, own, queue_id, low, some)
    return Purged(len(some), end, done=some[-1].offset + 1 >= end, topic_id=own)
