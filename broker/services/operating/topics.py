"""Administration of topics, and offsets of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.limits import check_topic_name
from broker.services.paging import page_limit, page_of_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import QueueState, Topic, TopicChange
    from broker.ports.topics import TopicStore
    from broker.services.catalog import Catalog
    from broker.services.judges import Judge


class TopicService:
    """Creates, changes, lists and deletes topics, and inspects their queues."""

    def __init__(self, store: TopicStore, catalog: Catalog) -> None:
        """Takes the port of topics, and the catalog."""
        self._store = store
        self._catalog = catalog

    async def create(self, name: str, wanted: TopicChange, priority_levels: int) -> Topic:
        """Creates a topic; settings that are 0 or None get their defaults.

        Raises:
            InvalidArgument: the name or a setting is out of bounds.
            AlreadyExists: the name is taken.
        """
        return await self._catalog.create_topic(name, wanted, priority_levels)

    async def topic(self, name: str) -> Topic:
        """A topic by name.

        Raises:
            NotFound: there is none.
        """
        return await self._catalog.current_topic(name)

    async def update(self, name: str, change: TopicChange) -> Topic:
        """Changes a topic while it is in use.

        Raises:
            NotFound: there is none.
            InvalidArgument: a setting is out of bounds, or queues would be removed.
        """
        return await self._store.update_topic(await self._catalog.current_topic(name), change)

    async def delete(self, name: str) -> None:
        """Deletes a topic with its messages.

        Raises:
            NotFound: there is none.
            Refused: half messages, scheduled messages or consumers refer to it.
        """
        await self._store.delete_topic(await self._catalog.current_topic(name))

    async def topics(self, page_token: str, page_size: int, may: Judge | None = None) -> tuple[list[Topic], str]:
        """A page of topics by name, and the token of the next page (empty at the end); `may`: which may be seen."""
        size = page_limit(page_size)
        if page_token:
            check_topic_name(page_token, "page_token")
        return await page_of_names(self._store.list_topics, page_token, size, may)

    async def queue_states(self, topic: str, group: str = "") -> Sequence[QueueState]:
        """First and last offsets of a topic's queues, and a group's progress.

        No group is created: it would have read nothing, and nothing would tell that it belongs to the topic.

        Raises:
            NotFound: there is no such topic or group.
        """
        found = await self._catalog.topic(topic)
        reader = await self._catalog.group_so_far(group) if group else None
        states = await self._store.queue_states(found, reader)
        if not states:
            # Deleted a moment ago, through another broker, and perhaps re-created.
            states = await self._store.queue_states(await self._catalog.current_topic(topic), reader)
        return states

    async def offsets_at(self, topic: str, time: int, identity: str = "") -> Sequence[int]:
        """For each queue of a topic the first offset that became visible at a time (microseconds) or later.

        Raises:
            NotFound: there is no such topic.
            Refused: an identity is given, and another topic has the name by now.
        """
        return await self._store.offsets_at(await self._catalog.same_topic(topic, identity), time)
