"""Consumer groups and their dead letters, through threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.storage.adapters.access import Access
from broker.storage.delivery import redrive
from broker.storage.groups import filters, groups, lags, progress
from broker.storage.retention import purging

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup, GroupSettings
    from broker.domain.topic import QueueState, Topic, TopicSettings
    from broker.ports.groups import DeadLetterPage, DeadLetterSearch, GroupLag, Purge, Purged, Redriven
    from broker.storage.engine.session import Session


class Groups(Access):
    """Implements GroupNames, GroupStore and DeadLetterStore."""

    async def group_names(self) -> dict[int, str]:
        """The names of all consumer groups by their numbers."""
        return await self._read(groups.names)

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        return await self._read(lambda session: groups.find_group(session, name))

    async def create_group(
        self, name: str, settings: GroupSettings, dead_letters: TopicSettings, *, most: int | None = None
    ) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic, unless there are `most` groups."""
        now = self.clock.now()

        def create(session: Session) -> ConsumerGroup:
            return groups.create_group(session, name, settings, dead_letters, now, most)

        def again(session: Session, before: ConsumerGroup) -> ConsumerGroup:
            return before if groups.has_group(session, before) else create(session)

        return await self._write(create, redo=again)

    async def update_group(self, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
        """Changes settings, by the names of GroupSettings."""
        return await self._write(lambda session: groups.update_group(session, group, changes))

    async def pause_group(self, group: ConsumerGroup, *, paused: bool, reason: str) -> ConsumerGroup:
        """Pauses or resumes delivery."""
        paused_at = self.clock.now() if paused else None
        return await self._write(lambda session: groups.pause_group(session, group, paused_at, reason or None))

    async def set_filter(self, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
        """Sets or removes the group's filter of a topic."""
        return await self._write(lambda session: filters.set_filter(session, group, topic, wanted))

    async def filters_of(self, group: ConsumerGroup) -> list[tuple[str, Filter]]:
        """The filters of a group, by the name of the topic."""

        def read(session: Session) -> list[tuple[str, Filter]]:
            found = filters.filters_of(session, group)
            topics = self.directory.by_ids(session, found)
            return sorted((topics[i].name, each) for i, each in found.items() if i in topics)

        return await self._read(read)

    async def filters_of_groups(self, groups: Sequence[ConsumerGroup]) -> list[list[tuple[str, Filter]]]:
        """The filters of several groups, by the name of the topic."""

        def read(session: Session) -> list[list[tuple[str, Filter]]]:
            found = filters.filters_of_groups(session, groups)
            topics = self.directory.by_ids(session, {topic_id for each in found.values() for topic_id in each})
            return [
                sorted((topics[i].name, each) for i, each in found.get(group.group_id, {}).items() if i in topics)
                for group in groups
            ]

        return await self._read(read)

    async def commit_offsets(self, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Records the progress of a group that reads by offset, by queue id."""
        await self._write(lambda session: progress.commit(session, group, topic, offsets))

    async def seek_group(
        self, group: ConsumerGroup, queue_ids: Sequence[int], *, to: int | None, offset: int | None
    ) -> None:
        """Moves a group to another position in some queues, and revokes its leases there."""
        await self._write(lambda session: progress.seek(session, group, queue_ids, to=to, offset=offset))

    async def find_dead_letters(self, search: DeadLetterSearch) -> DeadLetterPage:
        """Dead letters of a group, oldest first."""

        def find(session: Session) -> DeadLetterPage:
            return redrive.find(session, search, self.directory)

        return await (self._read(find) if search.wanted is None else self._judged(find, search.group.group_id))

    async def redrive(self, search: DeadLetterSearch, *, republish: bool) -> Redriven:
        """Delivers some dead letters to their group again."""
        if search.wanted is not None:
            # Filters are not evaluated while holding locks.
            unjudged = search
            search = await self._judged(
                lambda session: redrive.judged(session, unjudged, self.directory), search.group.group_id
            )
        now = self.clock.now()

        def deliver(session: Session) -> Redriven:
            return redrive.redrive(session, search, now, self.directory, republish=republish)

        def again(session: Session, before: Redriven) -> Redriven:
            return before if redrive.was_done(session, search, before, now, self.directory) else deliver(session)

        return await self._write(deliver, redo=again)

    async def purge_dead_letters(self, wanted: Purge) -> Purged:
        """Deletes some of a group's oldest dead letters."""
        if wanted.dry_run:
            return await self._read(lambda session: purging.purge(session, wanted, self.directory))
        return await self._write(lambda session: purging.purge(session, wanted, self.directory))

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        """Consumer groups by name."""
        return await self._read(lambda session: groups.list_groups(session, after, limit))

    async def delete_group(self, group: ConsumerGroup) -> None:
        """Deletes a consumer group with its progress and leases."""

        def again(session: Session, _: None) -> None:
            groups.delete_again(session, group)

        await self._write(lambda session: groups.delete_group(session, group), redo=again)

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        """Progress of a group in every queue it joined."""
        return await self._read(lambda session: progress.group_states(session, group, self.directory))

    async def group_lags(self, groups: Sequence[ConsumerGroup], topic: Topic | None) -> tuple[list[GroupLag], int]:
        """The lag of some groups by topic, and how many of these groups it is of: as many as fit into a page."""
        return await self._read(lambda session: lags.group_lags(session, groups, topic))
