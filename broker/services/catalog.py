"""Look-up of topics and groups by name; unknown ones are refused, or created on first use if enabled."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from broker.domain.access import Action, Kind
from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.domain.group import ConsumerGroup, GroupSettings, check_settings
from broker.domain.limits import MAX_GROUPS_MADE, check_group_name, check_topic_name
from broker.domain.topic import DAY, Compression, TopicChange, TopicSettings
from broker.errors import AlreadyExists, BrokerError, InvalidArgument, NotFound, Refused
from broker.services.creations import Creations
from broker.services.rights import CALLER, Numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from broker.domain.topic import Topic
    from broker.ports.groups import GroupNames
    from broker.ports.topics import TopicNames
    from broker.ports.transactions import ProducerGroups

CACHED_FOR = 2.0
"""Seconds for which a consumer group is cached."""
MOST_CACHED = 10_000
"""Groups in the cache before expired ones are dropped."""


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """Defaults for new topics and groups.

    Attributes:
        create_topics, create_groups: create unknown ones when first named. Off by default: messages to a misspelt name
            would otherwise go unnoticed.
        queue_count: queues of a topic that names no number.
        retention: microseconds that messages are kept where a topic names no time.
        client_groups: how many groups one client may make in an hour by naming them; 0: any number.
    """

    create_topics: bool = False
    create_groups: bool = False
    queue_count: int = 4
    retention: int = 72 * 3600 * 1_000_000
    client_groups: int = 0


def _check_own(name: str, field: str) -> None:
    """Refuses names that only the broker gives, to the dead letter topics of groups.

    Who has a tenant would get around its quotas with them. Others may have reasons of their own.
    """
    if CALLER.get().tenant and name.startswith(DEAD_LETTER_PREFIX):
        raise InvalidArgument(f"Names that begin with {DEAD_LETTER_PREFIX} are made with their groups.", field=field)


class Catalog:
    """Finds and creates topics and groups by name.

    Attributes:
        numbered_producer_groups, numbered_groups: all producer groups and consumer groups by their numbers.
        creating_group: what surrounds the creation of a consumer group by being named.
    """

    def __init__(
        self,
        topics: TopicNames,
        groups: GroupNames,
        producer_groups: ProducerGroups,
        config: CatalogConfig | None = None,
    ) -> None:
        """Takes the ports of names, and the defaults."""
        self._topics = topics
        self._groups = groups
        self._producer_groups = producer_groups
        self.config = config or CatalogConfig()
        self._creations = Creations(self.config.client_groups)
        self._cached_groups: dict[str, tuple[float, ConsumerGroup]] = {}
        self._producer_group_ids: dict[str, int] = {}
        self.numbered_producer_groups = Numbered(producer_groups.producer_groups)
        self.numbered_groups = Numbered(groups.group_names)
        self.creating_group: Callable[[str], AbstractAsyncContextManager[None]] = lambda _: nullcontext()

    def known_topic(self, name: str) -> Topic | None:
        """A cached topic."""
        return self._topics.known_topic(name)

    async def topic(self, name: str, field: str = "topic") -> Topic:
        """A topic by name.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none, and topics are not created on first use.
        """
        known = self._topics.known_topic(name)
        if known is not None:
            return known
        check_topic_name(name, field)
        topic = await self._topics.find_topic(name)
        if topic is None and self.config.create_topics and CALLER.get().may(Action.CREATE, Kind.TOPIC, name):
            try:
                topic = await self.create_topic(name)
            except AlreadyExists:
                topic = await self._topics.find_topic(name)
        if topic is None:
            raise _no_topic(name, field)
        return topic

    async def same_topic(self, name: str, identity: str) -> Topic:
        """A topic by name; if an identity is given, only the topic with that identity.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none.
            Refused: another topic has the name by now.
        """
        if not identity:
            return await self.topic(name)
        known = self._topics.known_topic(name)
        if known is None or known.identity != identity:
            # The cached one may be outdated.
            known = await self.current_topic(name)
        if known.identity != identity:
            raise topic_replaced(name, "topic_id")
        return known

    async def current_topic(self, name: str, field: str = "topic") -> Topic:
        """A topic, read from the database, and never created.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none.
        """
        # First: to a database a name is the same with a space behind it, to access rules it is not.
        check_topic_name(name, field)
        self._topics.forget_topics([name])
        topic = await self._topics.find_topic(name)
        if topic is None:
            raise _no_topic(name, field)
        return topic

    async def group(self, name: str, field: str = "consumer_group") -> ConsumerGroup:
        """A consumer group by name.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none, and groups are not created on first use.
        """
        group = await self.find_group(name, field)
        if group is None and self._creates_group(name):
            self._creations.check(CALLER.get().name)
            try:
                async with self.creating_group(name):
                    group = await self.create_group(name, most=MAX_GROUPS_MADE)
            except AlreadyExists:
                group = await self._groups.find_group(name)
            except BrokerError:
                self._creations.not_made(CALLER.get().name)
                raise
            if group is not None:
                self._keep_group(group)
        if group is None:
            raise _no_group(name, field)
        return group

    async def group_so_far(self, name: str, field: str = "consumer_group") -> ConsumerGroup:
        """A consumer group by name; one that `group` would create is not created, and is told as if it were new.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none, and groups are not created on first use.
        """
        group = await self.find_group(name, field)
        if group is None and not self._creates_group(name):
            raise _no_group(name, field)
        return group or ConsumerGroup(0, name, 0)

    def _creates_group(self, name: str) -> bool:
        return self.config.create_groups and CALLER.get().may(Action.CREATE, Kind.GROUP, name)

    async def find_group(self, name: str, field: str = "consumer_group") -> ConsumerGroup | None:
        """A consumer group by name, never created; None: there is none.

        Raises:
            InvalidArgument: the name is not allowed.
        """
        entry = self._cached_groups.get(name)
        if entry and entry[0] > time.monotonic():
            return entry[1]
        check_group_name(name, field)
        group = await self._groups.find_group(name)
        if group is not None:
            self._keep_group(group)
        return group

    def _keep_group(self, group: ConsumerGroup) -> None:
        self.numbered_groups.note(group.group_id, group.name)
        now = time.monotonic()
        if len(self._cached_groups) >= MOST_CACHED:
            self._cached_groups = {name: entry for name, entry in self._cached_groups.items() if entry[0] > now}
        self._cached_groups[group.name] = (now + CACHED_FOR, group)

    async def current_group(self, name: str, field: str = "group") -> ConsumerGroup:
        """A consumer group, read from the database, and never created.

        Raises:
            InvalidArgument: the name is not allowed.
            NotFound: there is none.
        """
        check_group_name(name, "group")
        self.forget(name, ())
        group = await self._groups.find_group(name)
        if group is None:
            raise _no_group(name, field)
        return group

    def forget(self, group: str, topics: Sequence[str]) -> None:
        """Drops these names from the cache: the groups were deleted or changed."""
        self._cached_groups.pop(group, None)
        self.forget_topics(topics)

    def forget_topics(self, names: Sequence[str]) -> None:
        """Drops these topics from the cache."""
        self._topics.forget_topics(names)

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group. Producer groups are created when first named.

        Raises:
            Overloaded: its tenant has as many as it may have, or the client has made too many.
        """
        known = self._producer_group_ids.get(name)
        if known is None:
            check_group_name(name, "producer_group")
            if (found := await self.find_producer_group(name)) is not None:
                return found
            _check_own(name, "producer_group")
            self._creations.check(CALLER.get().name)
            try:
                known = self._producer_group_ids[name] = await self._producer_groups.producer_group_id(name)
            except BrokerError:
                self._creations.not_made(CALLER.get().name)
                raise
            self.numbered_producer_groups.note(known, name)
        return known

    async def find_producer_group(self, name: str) -> int | None:
        """The number of a producer group; None if it was not named yet by a producer."""
        known = self._producer_group_ids.get(name)
        if known is None:
            known = await self._producer_groups.find_producer_group(name)
            if known is not None:
                self._producer_group_ids[name] = known
                self.numbered_producer_groups.note(known, name)
        return known

    async def create_topic(self, name: str, wanted: TopicChange | None = None, priority_levels: int = 0) -> Topic:
        """Creates a topic; settings that are 0, None or not given get their defaults.

        Raises:
            InvalidArgument: the name or a setting is out of bounds.
            AlreadyExists: the name is taken.
        """
        check_topic_name(name, "topic.name")
        _check_own(name, "topic.name")
        wanted = wanted or TopicChange()
        settings = TopicSettings(
            wanted.queue_count or self.config.queue_count,
            wanted.retention or self.config.retention,
            wanted.retention_bytes or 0,
            wanted.dedup_window or DAY,
            priority_levels or 1,
            wanted.compression or Compression.NONE,
        )
        settings.check("topic.")
        return await self._topics.create_topic(name, settings)

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
        _check_own(name, "group.name")
        check_settings({"max_attempts": settings.max_attempts, "retry_delays": settings.retry_delays}, "group.")
        dead_letters = TopicSettings(queue_count=1, retention=self.config.retention)
        group = await self._groups.create_group(name, settings, dead_letters, most=most)
        self._cached_groups.pop(name, None)
        return group


def topic_replaced(name: str, field: str) -> Refused:
    """The refusal of offsets of a topic whose name is another one's now."""
    return Refused(
        f"The topic {name!r} was deleted and created again: its offsets are those of other messages now."
        " Begin with the new one where that is what you want.",
        reason="TOPIC_REPLACED",
        field=field,
    )


def _no_topic(name: str, field: str) -> NotFound:
    return NotFound(
        f"There is no topic {name!r}; create it with `halfmq admin topic create {quote(name)}`.",
        reason="TOPIC_NOT_FOUND",
        field=field,
    )


def _no_group(name: str, field: str) -> NotFound:
    return NotFound(
        f"There is no consumer group {name!r}; create it with `halfmq admin group create {quote(name)}`.",
        reason="GROUP_NOT_FOUND",
        field=field,
    )
