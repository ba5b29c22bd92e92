"""Maintenance work: in small batches, on a thread of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.errors import StorageUnavailable
from broker.storage.adapters.access import Access
from broker.storage.delivery import delivery_events, leases
from broker.storage.groups import groups
from broker.storage.log import submissions
from broker.storage.retention import topic_deletion, turns
from broker.storage.retention import trimming as retention
from broker.storage.transactions import sinks

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.ports.upkeep import ToTrim
    from broker.storage.engine.session import Session


class Upkeep(Access):
    """Implements TurnStore, RetentionStore, ClockStore, PrimaryStore and ReadinessStore."""

    @property
    def database_away(self) -> bool:
        """Whether the last work that needed the database failed for its sake."""
        return self._database.availability.away

    async def look_at_tables(self) -> None:
        """Reads the version of the tables; no migration changes the table that it is in.

        Raises:
            StorageUnavailable: the database cannot be reached, or has no version.
            Exception: it has no such table.
        """
        versions = self._database.names.versions
        if await self._watch(lambda session: session.fetch_one(f"SELECT version_num FROM {versions}")) is None:
            raise StorageUnavailable("The database has no tables of halfmq.")

    async def look_for_primary(self) -> None:
        """Asks the database's servers which one accepts writes; connections to a former primary are cut."""
        # Not in a thread that serves work: all of those may wait for the former primary.
        await asyncio.get_running_loop().run_in_executor(self._primary_thread, self._database.look_for_primary)

    async def synchronise_clock(self) -> None:
        """Reads the database's time."""
        await self._read(self.clock.synchronise)

    async def take_turn(self, task: str, hold: int) -> bool:
        """Whether it is this broker's turn for a task; it keeps the turn for `hold` microseconds."""
        now = self.clock.now()
        free = await self._watch(lambda session: turns.is_free(session, task, self._broker_id, now))
        return free and await self._write(lambda session: turns.take(session, task, self._broker_id, now, hold))

    async def leave_turns(self) -> None:
        """Gives up all turns of this broker."""
        await self._write(lambda session: turns.leave(session, self._broker_id))

    async def orphaned_dead_letters(self, after: int, limit: int) -> list[int]:
        """The ids of empty dead letter topics whose group was deleted, once their retention has passed, in order."""
        now = self.clock.now()
        return await self._read(lambda session: topic_deletion.orphaned_dead_letters(session, now, limit, after))

    async def delete_orphaned(self, topic_id: int) -> None:
        """Deletes such a topic, unless somebody needs it by now."""
        now = self.clock.now()
        await self._clean(lambda session: topic_deletion.delete_orphaned(session, topic_id, now))

    async def deleted_topics(self, after: int, limit: int) -> list[int]:
        """The ids of deleted topics with remaining data, in order."""
        return await self._read(lambda session: topic_deletion.deleted_topics(session, limit, after))

    async def sweep_deleted_topic(self, topic_id: int) -> bool:
        """Removes a part of a deleted topic's data; returns whether any is left."""
        return await self._clean(lambda session: topic_deletion.sweep(session, topic_id))

    async def to_trim(self, after: int, limit: int) -> ToTrim:
        """What has to be deleted of the topics behind an id, as many as `limit`."""
        now = self.clock.now()
        return await self._glance(lambda session: retention.to_trim(session, after, limit, now, self.directory))

    async def trim_queue(self, topic: Topic, queue_id: int) -> int:
        """Deletes some messages past retention from the head of a queue; returns how many."""
        now = self.clock.now()
        return await self._clean(lambda session: retention.trim_queue(session, topic, queue_id, now))

    async def trim_topic(self, topic: Topic) -> int:
        """Deletes some of the oldest messages of a topic that exceeds its size; returns how many."""
        return await self._clean(lambda session: retention.trim_topic(session, topic))

    async def trim_ops(self, kept: int) -> int:
        """Deletes some op records older than `kept` microseconds; returns how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: retention.trim_ops(session, before))

    async def trim_dedup_keys(self) -> int:
        """Deletes some expired dedup keys; returns how many."""
        now = self.clock.now()
        return await self._clean(lambda session: retention.trim_dedup_keys(session, now))

    async def trim_events(self, kept: int) -> int:
        """Deletes some delivery events older than `kept` microseconds; returns how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: delivery_events.trim_events(session, before))

    async def trim_refused_submissions(self, kept: int) -> int:
        """Deletes some submissions that were refused more than `kept` microseconds ago; returns how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: submissions.trim_refused(session, before))

    async def forget_members(self, unseen: int, limit: int) -> int:
        """Deletes some members of broadcasting groups not seen for `unseen` microseconds; returns how many.

        Orphaned leases of deleted groups are deleted as well.
        """
        before = self.clock.now() - unseen

        def forget(session: Session) -> int:
            leases.drop_orphans(session)
            return groups.forget_members(session, before, limit)

        return await self._clean(forget)

    async def drop_sink_leftovers(self, kept: int) -> int:
        """Drops some half messages of sinks that no epoch needs, or that are older than `kept` microseconds."""
        now = self.clock.now()
        return await self._clean(lambda session: sinks.drop_leftovers(session, now - kept, now, self.directory))
