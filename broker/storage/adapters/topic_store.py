"""The part of the store that knows topics: making, changing and deleting them, and forgetting what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.catalog import topics
from broker.storage.log import lookup
from broker.storage.retention import topic_deletion
from broker.storage.retention import trimming as retention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic, TopicChange, TopicSettings
    from broker.ports.queries import FoundMessage, FoundPage, MessageSearch
    from broker.storage.engine.session import Session


class TopicStore(Access):
    """Implements TopicCatalog, QueryStore and what the retention sweeper asks, on a database."""

    def known_topic(self, name: str) -> Topic | None:
        """A topic seen a moment ago, without asking the database."""
        return self.directory.peek(name)

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without asking the database."""
        return self.directory.peek_queue(queue_id)

    def forget_topics(self, names: Sequence[str]) -> None:
        """Has these topics looked up anew."""
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
        """Changes a topic; how it is then."""
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

        try:
            await self._write(delete, redo=again)
        finally:
            # Not before the COMMIT: until then, whoever looks it up finds and remembers it.
            self.directory.forget(topic)

    async def deleted_topics(self, after: int, limit: int) -> list[int]:
        """The numbers of topics that are deleted and not all gone, in their order."""
        return await self._read(lambda session: topic_deletion.deleted_topics(session, limit, after))

    async def sweep_deleted_topic(self, topic_id: int) -> bool:
        """Removes a piece of what a deleted topic left; whether anything is left."""
        return await self._clean(lambda session: topic_deletion.sweep(session, topic_id))

    async def take_turn(self, task: str, hold: int) -> bool:
        """Whether this broker may do a maintenance task now; it keeps the turn for `hold` microseconds."""
        now = self.clock.now()
        return await self._clean(lambda session: retention.take_turn(session, task, self._broker_id, now, hold))

    async def trim_queue(self, topic: Topic, queue_id: int) -> int:
        """Deletes some messages past retention from the head of a queue; how many."""
        now = self.clock.now()
        return await self._clean(lambda session: retention.trim_queue(session, topic, queue_id, now))

    async def trim_topic(self, topic: Topic) -> int:
        """Deletes some of the oldest messages of a topic that holds too many bytes; how many."""
        return await self._clean(lambda session: retention.trim_topic(session, topic))

    async def trim_ops(self, kept: int) -> int:
        """Deletes some op records older than `kept` microseconds; how many."""
        before = self.clock.now() - kept
        return await self._clean(lambda session: retention.trim_ops(session, before))

    async def trim_dedup_keys(self) -> int:
        """Deletes some dedup keys that keep nothing out any more; how many."""
        now = self.clock.now()
        return await self._clean(lambda session: retention.trim_dedup_keys(session, now))

    async def find_message(self, transaction_id: bytes, position: int) -> FoundMessage | None:
        """A message by its identity, wherever it is."""
        return await self._read(lambda session: lookup.find_message(session, transaction_id, position, self.directory))

    async def find_messages(self, search: MessageSearch) -> FoundPage:
        """Messages of a topic by key, by time, or both."""
        return await self._read(lambda session: lookup.find_messages(session, search))
