"""Topics and queues, through threads and a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.cell import name_of_topic
from broker.storage.adapters.access import Access
from broker.storage.catalog import moves, topics
from broker.storage.groups import progress
from broker.storage.log import offsets_by_time
from broker.storage.retention import topic_deletion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import QueueState, Topic, TopicChange, TopicSettings
    from broker.storage.engine.session import Session


class Topics(Access):
    """Implements TopicNames, QueueNames and TopicStore."""

    def known_topic(self, name: str) -> Topic | None:
        """A cached topic, without a query."""
        return self.directory.peek(name)

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without a query."""
        return self.directory.peek_queue(queue_id)

    def forget_topics(self, names: Sequence[str]) -> None:
        """Drops these topics from the cache."""
        self.directory.forget_names(names)

    async def find_topic(self, name: str) -> Topic | None:
        """A topic by name."""
        return await self._read(lambda session: self.directory.by_name(session, name))

    async def find_topic_name(self, topic_id: int) -> str:
        """The name of a topic by its id; empty when it was deleted."""
        known = self.directory.peek_id(topic_id)
        if known is None:
            known = (await self._read(lambda session: self.directory.by_ids(session, [topic_id]))).get(topic_id)
        return known.name if known is not None else ""

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id."""
        return await self._read(lambda session: self.directory.of_queue(session, queue_id))

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        return await self._read(lambda session: topics.list_topics(session, after, limit, self.directory))

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Creates a topic; AlreadyExists when the name is taken."""
        now = self.clock.now()

        def create(session: Session) -> Topic:
            return topics.create_topic(session, name, settings, now)

        def again(session: Session, before: Topic) -> Topic:
            return before if topics.has_topic(session, before) else create(session)

        topic = await self._write(create, redo=again)
        self.directory.forget_names([name])
        return topic

    async def update_topic(self, topic: Topic, change: TopicChange) -> Topic:
        """Changes a topic; returns its new state."""
        changed = await self._write(lambda session: topics.update_topic(session, topic, change))
        self.directory.forget(topic)
        return changed

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic; Refused while half messages, scheduled messages or leases refer to it."""
        now = self.clock.now()

        def delete(session: Session) -> None:
            topic_deletion.delete_topic(session, topic, now)

        def again(session: Session, _: None) -> None:
            if topics.has_topic(session, topic):
                delete(session)
            else:
                moves.refuse_what_left(session, name_of_topic(topic.name))

        try:
            await self._write(delete, redo=again)
        finally:
            # Not before the COMMIT: until then, look-ups would find and cache it again.
            self.directory.forget(topic)

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        """First and last offsets of a topic's queues, and a group's progress."""
        return await self._read(lambda session: progress.topic_states(session, topic, group, self.directory))

    async def offsets_at(self, topic: Topic, time: int) -> list[int]:
        """For each queue of a topic the first offset that became visible at a time or later."""
        return await self._read(lambda session: offsets_by_time.offsets_at(session, topic, time))
