"""Scheduled messages: moved into the log by a lane, or topic by topic if one of them fails."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.errors import BrokerError, StorageRejected
from broker.ports.upkeep import Moved
from broker.storage.adapters.access import Access, StoreConfig
from broker.storage.catalog.free_queues import FreeQueues
from broker.storage.log import schedule
from broker.storage.log.schedule import SetApart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.connection import Database
    from broker.storage.engine.group_commit import Lane
    from broker.storage.engine.session import Session


class Schedule(Access):
    """Implements ScheduleStore."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Creates the lane of moves."""
        super().__init__(database, config)
        self._moves: Lane[int | None, Moved] = self._lane(
            "schedule", self._move_due, skip_locked=self._move_what_is_free
        )
        self._set_apart = SetApart()

    async def move_due(self, *, known: bool = False) -> Moved:
        """Moves due messages into the log, as many as fit into one transaction.

        When that fails, the messages of each topic are moved separately; a topic that fails then is skipped for some
        time.

        Args:
            known: some are known to be due, and need not be queried first.
        """
        if not known:
            earliest = await self._read(schedule.earliest)
            if earliest is None or earliest > self.clock.now():
                return Moved(next_due=earliest)
        moved = (await self._moves.submit([None]))[0]
        if isinstance(moved, StorageRejected):
            return await self._move_apart()
        if isinstance(moved, BrokerError):
            raise moved
        return moved

    async def _move_apart(self) -> Moved:
        """Moves the due messages of each topic separately."""
        now = self.clock.now()
        end_offsets: dict[tuple[int, int], int] = {}
        count = dropped = 0
        for topic_id in await self._read(lambda session: schedule.due_topics(session, now)):
            if topic_id in self._set_apart.topics():
                continue
            moved = (await self._moves.submit([topic_id]))[0]
            if isinstance(moved, Moved):
                count += moved.count
                dropped += moved.dropped
                end_offsets |= moved.end_offsets
            elif isinstance(moved, StorageRejected):
                found = await self._read(partial(self.directory.by_ids, topic_ids=[topic_id]))
                self._set_apart.add(topic_id, found[topic_id].name if topic_id in found else f"#{topic_id}")
            else:
                raise moved
        return Moved(count, dropped, end_offsets, now + schedule.LATER)

    def _move_due(self, session: Session, calls: Sequence[int | None]) -> list[Moved | BrokerError]:
        return [self._moved(session, topic_id) for topic_id in calls]

    def _move_what_is_free(self, session: Session, calls: Sequence[int | None]) -> list[Moved | BrokerError]:
        return [self._moved(session, topic_id, FreeQueues(session)) for topic_id in calls]

    def _moved(self, session: Session, topic_id: int | None, free: FreeQueues | None = None) -> Moved:
        return schedule.move_due(
            session,
            self.clock.now(),
            self.directory,
            next(self._rotations),
            only=topic_id,
            without=self._set_apart.topics(),
            free=free,
        )
