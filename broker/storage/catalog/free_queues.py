"""Chooses queues while another session holds some of them, without waiting for a row that may stay locked.

A broker that is stopped or disconnected in the middle of a database transaction keeps its locks until the database ends
its session. A lane that has waited for such a lock once uses SKIP LOCKED, and takes another queue, or defers messages
that must go to the locked one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.errors import RowsLocked

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session


class FreeQueues:
    """Queues whose rows one database transaction locked without waiting."""

    def __init__(self, session: Session) -> None:
        """Takes the session of the transaction."""
        self._session = session
        self._locked: set[int] = set()
        self._held: set[int] = set()

    def choose(self, topic: Topic, queue_no: int | None, priority: int, rotation: int) -> int | None:
        """The database's number of a queue for a message, as `Topic.choose_queue`; None if all candidates are held."""
        for queue_id in topic.fitting_queues(queue_no, priority, rotation):
            if self._is_free(queue_id):
                return queue_id
        return None

    def _is_free(self, queue_id: int) -> bool:
        if queue_id in self._locked:
            return True
        if queue_id in self._held:
            return False
        query = "SELECT queue_id FROM queue WHERE queue_id = ?" + self._session.dialect.skip_locked
        found = self._session.fetch(query, (queue_id,))
        (self._locked if found else self._held).add(queue_id)
        return bool(found)


def held(topic: Topic) -> RowsLocked:
    """The outcome of a message whose suitable queues are all locked."""
    return RowsLocked(
        f"The queues of topic {topic.name!r} are locked by another session at the moment; nothing was acknowledged, try"
        " again."
    )
