"""Dense offsets: taken under the lock of the queue's row, so that only a restore of the database leaves gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import NotFound
from broker.storage.engine.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.storage.engine.session import Session


def take_offsets(session: Session, wanted: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Takes the next offsets of queues for numbers of messages and bytes of bodies; returns the first of each.

    Locks the queues' rows, in ascending order, until the transaction ends: a reader that sees an offset sees all below
    it.

    Raises:
        NotFound: a topic was deleted.
        StorageUnavailable: the database is in an earlier state than it was.
    """
    queue_ids = sorted(wanted)
    ends = session.known_ends
    known = ends.of(queue_ids) if ends is not None else {}
    taken = session.execute_all([taking(session, queue_id, *wanted[queue_id]) for queue_id in queue_ids])
    first = {}
    for queue_id, answer in zip(queue_ids, taken, strict=True):
        if not (answer.rows or answer.changed):
            raise NotFound("The topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topic")
        first[queue_id] = session.dialect.offset_after(answer) - wanted[queue_id][0]
    if ends is not None:
        ends.compare(known, first)
    session.taken |= {queue_id: first[queue_id] + wanted[queue_id][0] for queue_id in queue_ids}
    return first


def taking(session: Session, queue_id: int, count: int, size: int) -> Statement:
    """Statement that takes offsets of a queue for a number of messages and bytes of bodies. By primary key."""
    return Statement(session.dialect.take_offsets, (size, count, queue_id))
