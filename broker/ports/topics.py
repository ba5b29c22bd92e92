"""Topics and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic, TopicChange, TopicSettings


class CatalogStore(Protocol):
    """Topics and groups."""

    def known_topic(self, name: str) -> Topic | None:
        """A topic seen a moment ago, without asking the database."""
        ...

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without asking the database."""
        ...

    def forget_topics(self, names: Sequence[str]) -> None:
        """Has these topics looked up anew."""
        ...

    async def find_topic(self, name: str) -> Topic | None:
        """A topic by name."""
        ...

    async def find_topic_name(self, topic_id: int) -> str:
        """The name of a topic by its id; empty when it was deleted."""
        ...

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id."""
        ...

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        ...

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Creates a topic; AlreadyExists when the name is taken."""
        ...

    async def update_topic(self, topic: Topic, change: TopicChange) -> Topic:
        """Changes a topic; how it is then."""
        ...

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        ...

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic; Refused while half messages, scheduled messages or leases refer to it."""
        ...
