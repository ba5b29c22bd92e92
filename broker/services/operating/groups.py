"""Administration of consumer groups: settings, pausing, seeking, filters, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.group import check_settings
from broker.domain.limits import check_count, check_group_name, check_reason
from broker.errors import InvalidArgument
from broker.services.paging import page_limit, page_of_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup, GroupSettings
    from broker.domain.topic import QueueState
    from broker.ports.groups import GroupLag, GroupStore
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge
    from broker.services.wakeups import Wakeups

_Filters = list[tuple[str, "Filter"]]


class GroupService:
    """Inspects, changes and deletes groups, also while they are in use."""

    def __init__(self, store: GroupStore, catalog: Catalog, wakeups: Wakeups) -> None:
        """Takes the port of groups, the catalog, and the wake-ups."""
        self._store = store
        self._catalog = catalog
        self._wakeups = wakeups

    async def create(self, name: str, settings: GroupSettings) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic.

        Raises:
            InvalidArgument: name or a setting is out of bounds.
            AlreadyExists: the name is taken.
        """
        return await self._catalog.create_group(name, settings)

    async def groups(
        self, page_token: str, page_size: int, may: Judge | None = None
    ) -> tuple[list[tuple[ConsumerGroup, _Filters]], str]:
        """A page of consumer groups by name, with their filters by topic, and the token of the next page.

        `may`: which may be seen.
        """
        found, following = await self._page(page_token, page_size, may)
        return list(zip(found, await self._store.filters_of_groups(found), strict=True)), following

    async def _page(self, page_token: str, page_size: int, may: Judge | None) -> tuple[list[ConsumerGroup], str]:
        size = page_limit(page_size)
        if page_token:
            check_group_name(page_token, "page_token")
        return await page_of_names(self._store.list_groups, page_token, size, may)

    async def progress(self, name: str) -> tuple[ConsumerGroup, _Filters, Sequence[QueueState]]:
        """A group, its filters by topic, and its progress in every queue it joined.

        Raises:
            NotFound: there is no such group.
        """
        group = await self._catalog.current_group(name)
        return group, await self._store.filters_of(group), await self._store.group_progress(group)

    async def lags(
        self, topic: str, page_token: str, page_size: int, may: Judge | None = None
    ) -> tuple[list[GroupLag], str]:
        """The lag of a page of groups by topic, and the token of the next page (empty at the end).

        Args:
            topic: only in this one; empty: in all.
            page_token: of the page before.
            page_size: groups of a page; there may be fewer although others follow.
            may: which groups may be seen.

        Raises:
            NotFound: there is no such topic.
        """
        found, following = await self._page(page_token, page_size, may)
        lags, count = await self._store.group_lags(found, await self._catalog.current_topic(topic) if topic else None)
        return lags, found[count - 1].name if count < len(found) else following

    async def update(self, name: str, changes: dict[str, Any]) -> tuple[ConsumerGroup, _Filters]:
        """Changes settings, by the names of GroupSettings; omitted ones are unchanged.

        Raises:
            NotFound: there is no such group.
            InvalidArgument: a setting is out of bounds.
        """
        group = await self._catalog.current_group(name)
        check_settings(changes)
        return await self._changed(await self._store.update_group(group, changes))

    async def pause(self, name: str, *, paused: bool, reason: str) -> tuple[ConsumerGroup, _Filters]:
        """Pauses or resumes delivery to a group. Delivered messages may still be settled.

        Raises:
            NotFound: there is no such group.
        """
        group = await self._catalog.current_group(name)
        reason = check_reason(reason) if paused else ""
        return await self._changed(await self._store.pause_group(group, paused=paused, reason=reason))

    async def set_filter(self, name: str, topic: str, wanted: Filter | None) -> tuple[ConsumerGroup, _Filters]:
        """Sets or removes a group's filter of a topic.

        Raises:
            NotFound: there is no such group or topic.
        """
        group = await self._catalog.current_group(name)
        found = await self._catalog.current_topic(topic, "filter.topic")
        return await self._changed(await self._store.set_filter(group, found, wanted))

    async def drop_filter(self, name: str, topic: str) -> None:
        """Removes a group's filter of a topic, if there is one.

        Raises:
            NotFound: there is no such group.
        """
        group = await self._catalog.current_group(name)
        if any(filtered == topic for filtered, _ in await self._store.filters_of(group)):
            await self.set_filter(name, topic, None)

    async def seek(
        self, name: str, topic: str, queue_no: int | None, *, to: int | None, offset: int | None
    ) -> list[QueueState]:
        """Moves a group to another position of a topic, also while it is in use.

        Args:
            name: the group.
            topic: the topic.
            queue_no: only this queue; None: all of them.
            to: EARLIEST, LATEST, or a time in microseconds.
            offset: an offset, instead of `to`; only with a queue.

        Returns:
            The group's progress in the topic now.

        Raises:
            NotFound: there is no such group or topic, or the group never read it.
            InvalidArgument: the queue or the offset is invalid.
            OffsetLost: the offset is of a time that a restore of the database undid.
        """
        group = await self._catalog.current_group(name)
        found = await self._catalog.current_topic(topic)
        if queue_no is not None:
            found.check_queue(queue_no)
        if offset is not None and (queue_no is None or offset < 0):
            raise InvalidArgument(
                "An offset cannot be negative, and belongs to one queue: name it.",
                field="to.offset" if queue_no is not None else "queue",
            )
        if offset is not None and queue_no is not None:
            found.check_offset(queue_no, offset, "to.offset")
        queue_ids = found.queue_ids if queue_no is None else [found.queue_ids[queue_no]]
        await self._store.seek_group(group, queue_ids, to=to, offset=offset)
        self._noticed(name)
        return [state for state in await self._store.group_progress(group) if state.topic == topic]

    async def commit(self, name: str, topic: str, offsets: Sequence[tuple[int, int]], topic_id: str = "") -> None:
        """Records the progress of a group that reads by offset; an unknown one is created if that is enabled.

        Args:
            name: the group.
            topic: the topic.
            offsets: by number of the queue, the offset below which all messages are handled.
            topic_id: the topic's identity; empty: not checked.

        Raises:
            NotFound: there is no such group or topic.
            InvalidArgument: a queue or an offset is invalid.
            Refused: the group reads under leases, or another topic has the name by now.
        """
        self._catalog.forget(name, ())
        if not (await self._catalog.group_so_far(name)).group_id:
            # It is created for a topic that is there: if that has just moved to another cell, it would stay behind.
            await self._catalog.current_topic(topic)
        found = await self._catalog.same_topic(topic, topic_id)
        check_count(len(offsets), len(found.queue_ids), "queues")
        by_id: dict[int, int] = {}
        for index, (queue_no, offset) in enumerate(offsets):
            if queue_no >= len(found.queue_ids) or found.queue_ids[queue_no] in by_id:
                raise InvalidArgument(
                    f"The topic {topic!r} has {len(found.queue_ids)} queues, from 0 on; name each once.",
                    field=f"queues[{index}].queue",
                )
            if offset < 0:
                raise InvalidArgument("An offset cannot be negative.", field=f"queues[{index}].offset")
            found.check_offset(queue_no, offset, f"queues[{index}].offset")
            by_id[found.queue_ids[queue_no]] = offset
        await self._store.commit_offsets(await self._catalog.group(name), found, by_id)

    async def delete(self, name: str) -> None:
        """Deletes a consumer group with its progress and leases; retention deletes its empty dead letter topic.

        Raises:
            NotFound: there is none.
        """
        group = await self._catalog.current_group(name)
        await self._store.delete_group(group)
        self._noticed(name)

    async def _changed(self, group: ConsumerGroup) -> tuple[ConsumerGroup, _Filters]:
        self._noticed(group.name)
        return group, await self._store.filters_of(group)

    def _noticed(self, name: str) -> None:
        """Notifies this broker's consumers of a change now; those of other brokers detect it within a moment."""
        self._catalog.forget(name, ())
        self._wakeups.wake_all()
