"""Names to topics and groups; unknown ones are refused, or made on the spot where that is switched on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.group import GroupSettings, check_settings
from broker.domain.limits import MAX_GROUPS_MADE, check_group_name, check_topic_name
from broker.domain.topic import DAY, TopicChange, TopicSettings
from broker.errors import AlreadyExists, InvalidArgument, NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import QueueState, Topic
    from broker.ports.storage import Storage

REMEMBERED_FOR = 2.0
MOST_REMEMBERED = 10_000
"""Groups that are remembered before those are dropped whose time is over."""
LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """How topics and groups come into being.

    Attributes:
        create_topics, create_groups: make unknown ones when they are first named. Off by default: a misspelt name would
            otherwise swallow messages.
        queue_count: queues of a topic that names no number.
        retention: microseconds that messages are kept where a topic names no time.
    """

    create_topics: bool = False
    create_groups: bool = False
    queue_count: int = 4
    retention: int = 72 * 3600 * 1_000_000


class Catalog:
    """Finds, makes, lists and deletes topics and groups."""

    def __init__(self, store: Storage, config: CatalogConfig | None = None) -> None:
        """Takes the storage and the defaults."""
        self._store = store
        self.config = config or CatalogConfig()
        self._groups: dict[str, tuple[float, ConsumerGroup]] = {}
        self._producer_groups: dict[str, int] = {}

    def known_topic(self, name: str) -> Topic | None:
        """A topic that was looked up a moment ago."""
        return self._store.known_topic(name)

    async def topic(self, name: str, field: str = "topic") -> Topic:
        """A topic by name.

        Raises:
            InvalidArgument: the name cannot be one.
            NotFound: there is none, and topics are not made on the spot.
        """
        known = self._store.known_topic(name)
        if known is not None:
            return known
        check_topic_name(name, field)
        topic = await self._store.find_topic(name)
        if topic is None and self.config.create_topics:
            try:
                topic = await self.create_topic(name)
            except AlreadyExists:
                topic = await self._store.find_topic(name)
        if topic is None:
            raise NotFound(
                f"There is no topic {name!r}; create it with AdminService.CreateTopic.",
                reason="TOPIC_NOT_FOUND",
                field=field,
            )
        return topic

    async def same_topic(self, name: str, identity: str) -> Topic:
        """A topic by name; where an identity is given, that one and no other of its name.

        Raises:
            InvalidArgument: the name cannot be one.
            NotFound: there is none.
            Refused: another topic has the name by now.
        """
        if not identity:
            return await self.topic(name)
        known = self._store.known_topic(name)
        if known is None or known.identity != identity:
            # What is remembered may be the one of before.
            known = await self._existing_topic(name)
        if known.identity != identity:
            raise Refused(
                f"The topic {name!r} was deleted and made anew: its offsets are those of other messages now. Begin with"
                " the new one where that is what you want.",
                reason="TOPIC_REPLACED",
                field="topic_id",
            )
        return known

    async def group(self, name: str, field: str = "consumer_group") -> ConsumerGroup:
        """A consumer group by name.

        Raises:
            InvalidArgument: the name cannot be one.
            NotFound: there is none, and groups are not made on the spot.
        """
        entry = self._groups.get(name)
        if entry and entry[0] > time.monotonic():
            return entry[1]
        check_group_name(name, field)
        group = await self._store.find_group(name)
        if group is None and self.config.create_groups:
            try:
                group = await self.create_group(name, most=MAX_GROUPS_MADE)
            except AlreadyExists:
                group = await self._store.find_group(name)
        if group is None:
            raise NotFound(
                f"There is no consumer group {name!r}; create it with AdminService.CreateGroup.",
                reason="GROUP_NOT_FOUND",
                field=field,
            )
        now = time.monotonic()
        if len(self._groups) >= MOST_REMEMBERED:
            self._groups = {name: entry for name, entry in self._groups.items() if entry[0] > now}
        self._groups[name] = (now + REMEMBERED_FOR, group)
        return group

    def forget(self, group: str, topics: Sequence[str]) -> None:
        """Has these names looked up anew: what was remembered turned out to be gone."""
        self._groups.pop(group, None)
        self._store.forget_topics(topics)

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group. Producers come and go, so theirs are made when first named."""
        known = self._producer_groups.get(name)
        if known is None:
            check_group_name(name, "producer_group")
            known = self._producer_groups[name] = await self._store.producer_group_id(name)
        return known

    async def create_topic(self, name: str, wanted: TopicChange | None = None, priority_levels: int = 0) -> Topic:
        """Creates a topic; what is 0, None or not given gets its default.

        Raises:
            InvalidArgument: the name or a setting is out of bounds.
            AlreadyExists: the name is taken.
        """
        check_topic_name(name, "topic.name")
        wanted = wanted or TopicChange()
        settings = TopicSettings(
            wanted.queue_count or self.config.queue_count,
            wanted.retention or self.config.retention,
            wanted.retention_bytes or 0,
            wanted.dedup_window or DAY,
            priority_levels or 1,
        )
        settings.check("topic.")
        return await self._store.create_topic(name, settings)

    async def update_topic(self, name: str, change: TopicChange) -> Topic:
        """Changes a topic while it is in use.

        Raises:
            NotFound: there is none.
            InvalidArgument: a setting is out of bounds, or queues would have to go.
        """
        return await self._store.update_topic(await self._existing_topic(name), change)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with its messages.

        Raises:
            NotFound: there is none.
            Refused: half messages, scheduled messages or consumers refer to it.
        """
        await self._store.delete_topic(await self._existing_topic(name))

    async def _existing_topic(self, name: str) -> Topic:
        """A topic as the database has it now."""
        self._store.forget_topics([name])
        topic = await self._store.find_topic(name)
        if topic is None:
            check_topic_name(name)
            raise NotFound(f"There is no topic {name!r}.", reason="TOPIC_NOT_FOUND", field="topic")
        return topic

    async def create_group(
        self, name: str, settings: GroupSettings | None = None, *, most: int | None = None
    ) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic.

        Raises:
            InvalidArgument: name or a setting is out of bounds.
            AlreadyExists: the name is taken.
            Refused: there are `most` groups already.
        """
        settings = settings or GroupSettings()
        check_group_name(name, "group.name")
        check_settings({"max_attempts": settings.max_attempts, "retry_delays": settings.retry_delays}, "group.")
        dead_letters = TopicSettings(queue_count=1, retention=self.config.retention)
        group = await self._store.create_group(name, settings, dead_letters, most=most)
        self._groups.pop(name, None)
        return group

    async def topics(self, page_token: str, page_size: int) -> tuple[list[Topic], str]:
        """A page of topics by name, and the token of the next page (empty at the end)."""
        size = page_limit(page_size)
        if page_token:
            check_topic_name(page_token, "page_token")
        found = await self._store.list_topics(page_token, size + 1)
        return found[:size], found[size - 1].name if len(found) > size else ""

    async def queue_states(self, topic: str, group: str = "") -> Sequence[QueueState]:
        """Where the queues of a topic begin and end, and how far a group has come."""
        found = await self.topic(topic)
        reader = await self.group(group) if group else None
        states = await self._store.queue_states(found, reader)
        if not states:
            # Deleted a moment ago, through another broker, and perhaps made anew.
            states = await self._store.queue_states(await self._existing_topic(topic), reader)
        return states

    async def offsets_at(self, topic: str, time: int, identity: str = "") -> Sequence[int]:
        """For each queue of a topic the first offset that became visible at a time (microseconds) or later."""
        return await self._store.offsets_at(await self.same_topic(topic, identity), time)


def page_limit(page_size: int) -> int:
    """The number of entries of a page; 0 stands for 100."""
    if page_size > LARGEST_PAGE:
        raise InvalidArgument(f"A page of {page_size}; {LARGEST_PAGE} is the largest.", field="page_size")
    return page_size or 100
