"""Small fakes of the ports, for tests that run a service alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.group import ConsumerGroup, GroupSettings
from broker.domain.topic import Topic
from broker.services.catalog import Catalog, CatalogConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import TopicSettings

HOUR = 3600 * 1_000_000


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, time: int = 1_000_000) -> None:
        self.time = time

    def now(self) -> int:
        return self.time


class FakeNames:
    """Topics and groups by name, as the database has them, and a cache of topics in front of it."""

    def __init__(self, *topics: str, queue_count: int = 1, groups: Sequence[str] = ()) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, ConsumerGroup] = {}
        self.cached: dict[str, Topic] = {}
        self.look_ups: list[str] = []
        self.queue_count = queue_count
        self._next = 1
        for name in topics:
            self.make_topic(name)
        for name in groups:
            self.groups[name] = ConsumerGroup(len(self.groups) + 1, name, 0, GroupSettings(3))

    def make_topic(self, name: str, priorities: tuple[int, ...] = ()) -> Topic:
        """Makes a topic, in place of one that has the name; what is cached stays."""
        number, self._next = self._next, self._next + 1
        queue_ids = tuple(10 * number + queue for queue in range(self.queue_count))
        self.topics[name] = Topic(number, name, HOUR, number, queue_ids, priorities)
        return self.topics[name]

    def known_topic(self, name: str) -> Topic | None:
        return self.cached.get(name)

    def forget_topics(self, names: Sequence[str]) -> None:
        for name in names:
            self.cached.pop(name, None)

    async def find_topic(self, name: str) -> Topic | None:
        self.look_ups.append(name)
        if name in self.topics:
            self.cached[name] = self.topics[name]
        return self.topics.get(name)

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        return self.make_topic(name)

    async def find_group(self, name: str) -> ConsumerGroup | None:
        self.look_ups.append(name)
        return self.groups.get(name)

    async def create_group(
        self, name: str, settings: GroupSettings, dead_letters: TopicSettings, *, most: int | None = None
    ) -> ConsumerGroup:
        self.groups[name] = ConsumerGroup(len(self.groups) + 1, name, 0, settings)
        return self.groups[name]

    async def producer_group_id(self, name: str) -> int:
        self.look_ups.append(name)
        return 7

    async def find_producer_group(self, name: str) -> int | None:
        self.look_ups.append(name)
        return 7 if name == "shop" else None

    async def producer_groups(self) -> dict[int, str]:
        return {7: "shop"}

    async def group_names(self) -> dict[int, str]:
        return {group.group_id: name for name, group in self.groups.items()}

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        return None

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        for topic in self.topics.values():
            if queue_id in topic.queue_ids:
                return topic, topic.queue_ids.index(queue_id)
        return None

    async def find_topic_name(self, topic_id: int) -> str:
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), "")

    def catalog(self, **config: Any) -> Catalog:
        """A catalog over these names."""
        return Catalog(self, self, self, CatalogConfig(**config))
