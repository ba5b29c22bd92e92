"""Deletes marks that nothing will ask for.

A mark is needed while its message may be delivered again, or another message with the same business key may come. The
first ends when the broker has every message up to its offset as handled by the group; the second is a matter of time
(``AppliedSettings.keep``). A mark goes when both are over. Messages before the group's position are delivered again
only if an operator sets the position back, or redrives dead letters.

The positions are read anew for each part, after the part itself. A mark is committed after its message was stored, so
the queue of a mark in the part then ends behind its message. With positions that were read before, an offset at or
behind the queue's end could be that of a message which came since, and is not acked yet.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from client_core.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.local_database import LocalDatabase
    from consumer_sdk.applied.marks import Mark, Marks
    from consumer_sdk.applied.settings import AppliedSettings
    from consumer_sdk.reading import QueueOffset

__all__ = ["TOPIC_GONE", "CleaningThread", "ReadsOffsets", "Sweep", "sweep"]

_log = logging.getLogger("halfmq.consumer")

_AT_ONCE = 500
TOPIC_GONE = "TOPIC_NOT_FOUND"


class ReadsOffsets(Protocol):
    """A Consumer or a QueueReader."""

    def queue_offsets(self, topic: str, group: str | None = None, /) -> list[QueueOffset]:
        """The positions of a group in a topic's queues."""
        ...


class Sweep:
    """One pass over the old marks, in parts; used by both forms."""

    def __init__(self, marks: Marks, settings: AppliedSettings) -> None:
        """Starts at the oldest mark."""
        self._marks = marks
        self._keep = settings.keep
        self._since = 0
        self._queues: dict[str, dict[int, QueueOffset]] = {}

    def next_part(self, database: LocalDatabase) -> list[Mark]:
        """Some marks that are old enough; none at the end."""
        with database.transaction() as local:
            found = self._marks.older(local, self._keep, self._since, _AT_ONCE)
        self._queues = {}  # Positions from before this part do not tell about it.
        if found:
            # Those of the last instant are looked at again, unless the part has no other.
            self._since = found[-1].applied_at + (found[0].applied_at == found[-1].applied_at)
        return found

    @staticmethod
    def topics(marks: Iterable[Mark]) -> list[str]:
        """Topics of a part, whose positions are to be read now: see learn()."""
        return sorted({each.topic for each in marks})

    def learn(self, topic: str, offsets: list[QueueOffset]) -> None:
        """Takes a topic's positions for the current part; none: the topic is gone, and its messages with it."""
        self._queues[topic] = {each.queue: each for each in offsets}

    def delete(self, database: LocalDatabase, marks: list[Mark]) -> int:
        """Deletes those whose messages are handled; how many."""
        done = [each for each in marks if self._is_handled(each)]
        if not done:
            return 0
        with database.transaction(1.0) as local:
            return self._marks.delete(local, done)

    def _is_handled(self, mark: Mark) -> bool:
        queue = self._queues[mark.topic].get(mark.queue)
        # Where the queue ends before it, it was of another topic with this name, whose messages are gone.
        return queue is None or mark.offset < queue.committed_offset or mark.offset >= queue.max_offset


def sweep(database: LocalDatabase, marks: Marks, settings: AppliedSettings, reader: ReadsOffsets) -> int:
    """Deletes what can go; how many."""
    count, work = 0, Sweep(marks, settings)
    while part := work.next_part(database):
        for topic in work.topics(part):
            try:
                work.learn(topic, reader.queue_offsets(topic, marks.group))
            except RequestRefused as error:
                if error.reason != TOPIC_GONE:
                    raise
                work.learn(topic, [])
        count += work.delete(database, part)
    return count


class CleaningThread:
    """Cleans now and then while consumers run."""

    def __init__(self, database: LocalDatabase, marks: Marks, settings: AppliedSettings) -> None:
        """Takes what to delete from; starts nothing."""
        self._database = database
        self._marks = marks
        self._settings = settings
        self._stopped = threading.Event()

    def start(self, reader: ReadsOffsets) -> None:
        """Starts it, unless the settings say never."""
        if self._settings.clean_every:
            threading.Thread(target=self._run, args=(reader,), name="halfmq-applied", daemon=True).start()

    def stop(self) -> None:
        """Has it end."""
        self._stopped.set()

    def _run(self, reader: ReadsOffsets) -> None:
        due = time.monotonic() + self._settings.clean_every
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._settings.clean_every
            try:
                sweep(self._database, self._marks, self._settings, reader)
            except Exception as error:
                _log.warning("marks of applied messages cannot be deleted now: %s; trying again later", error)
