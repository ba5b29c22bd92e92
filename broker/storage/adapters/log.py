"""The log: sends go through a lane; reads through threads, those with filters in fair turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.columns import ALL_COLUMNS
from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.log import log, reading, recall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.columns import Column, LogColumns
    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage
    from broker.domain.place import Place, Queue
    from broker.domain.topic import Topic
    from broker.errors import BrokerError
    from broker.ports.log import Duplicate, QueueMeasure, QueueSlice, RecallWork, SendWork
    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import Lane
    from broker.storage.engine.session import Session


class Log(Access):
    """Implements LogStore, QueueStore and EndOffsetStore."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lane of sends."""
        super().__init__(database, config)
        self._sends: Lane[SendWork, Place | Duplicate] = self._lane(
            "send",
            self._send,
            skip_locked=self._send_what_is_free,
            settled=log.note_settled,
            size_of=lambda item: item.size,
        )

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        """Appends or schedules ordinary messages; returns the place of each."""
        return await self._sends.submit(work)

    async def recall(self, work: Sequence[RecallWork]) -> list[int | BrokerError]:
        """Recalls scheduled messages; returns the time of each recall."""
        now = self.clock.now()
        return await self._write(lambda session: recall.recall(session, work, now, self.directory))

    async def read_queue(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[list[LogMessage]]:
        """Reads messages from an offset; messages that do not match are skipped."""

        def read(session: Session) -> QueueSlice[list[LogMessage]]:
            return reading.read_queue(session, topic, queue_no, offset, limit, max_bytes, wanted)

        return await (self._read(read) if wanted is None else self._judged(read, ("readers", topic.topic_id)))

    async def read_columns(
        self,
        topic: Topic,
        queue_no: int,
        offset: int,
        limit: int,
        max_bytes: int,
        wanted: Filter | None = None,
        only: frozenset[Column] = ALL_COLUMNS,
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns; others than `only` may be empty."""

        def read(session: Session) -> QueueSlice[LogColumns]:
            return reading.read_columns(session, topic, queue_no, offset, limit, max_bytes, wanted, only)

        return await (self._read(read) if wanted is None else self._judged(read, ("readers", topic.topic_id)))

    async def measure_queue(
        self, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
    ) -> QueueMeasure:
        """Size of a part of a queue in bytes of bodies, or the offset at which it reaches a limit."""
        # As large a read as a filter's: it shares their turns, and does not block look-ups.
        return await self._judged(
            lambda session: reading.measure_queue(session, topic, queue_no, offset, end, max_bytes),
            ("readers", topic.topic_id),
        )

    async def end_offsets(self, topic_ids: Sequence[int]) -> dict[Queue, int]:
        """The end of each queue of these topics: its next offset."""
        end_offsets = await self._watch(lambda session: reading.end_offsets(session, topic_ids))
        self.directory.notice(end_offsets)
        return end_offsets

    def _send(self, session: Session, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        return log.send(session, work, self.clock.now(), self.directory, next(self._rotations), ends=self.ends)

    def _send_what_is_free(self, session: Session, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        return log.send(session, work, self.clock.now(), self.directory, next(self._rotations), FreeQueues(session))
