"""Topics and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import QueueState, Topic, TopicChange, TopicSettings


class TopicNames(Protocol):
    """Look-up of topics by name."""

    def known_topic(self, name: str) -> Topic | None:
        """A cached topic, without a query."""
        ...

    def forget_topics(self, names: Sequence[str]) -> None:
        """Drops these topics from the cache, so that the next look-up queries the database."""
        ...

    async def find_topic(self, name: str) -> Topic | None:
        """A topic by name."""
        ...

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Creates a topic; AlreadyExists when the name is taken."""
        ...


class QueueNames(Protocol):
    """Look-up of the names of ids in places."""

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without a query."""
        ...

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id."""
        ...

    async def find_topic_name(self, topic_id: int) -> str:
        """The name of a topic by its id; empty when it was deleted."""
        ...


class TopicStore(Protocol):
    """Administration of topics."""

    async def update_topic(self, topic: Topic, change: TopicChange) -> Topic:
        """Changes a topic; returns its new state."""
        ...

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics in the order of their names, after a name."""
        ...

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic; Refused while half messages, scheduled messages or leases refer to it."""
        ...

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        """First and next offset of each queue, and the group's position in it."""
        ...

    async def offsets_at(self, topic: Topic, time: int) -> list[int]:
        """For each queue the first offset that became visible at a time (microseconds) or later."""
        ...
