"""Forgetting what is past its time: heads of queues, deleted topics, op records, dedup keys, and what consumers did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.maintenance.loop import Loop

if TYPE_CHECKING:
    from broker.domain.topic import Topic

INTERVAL = 30.0
SEEN_EVERY = 3600 * 1_000_000
TASK = "retention"
PAGE = 1000


class RetentionStore(Protocol):
    """What the sweeper asks of the storage."""

    async def take_turn(self, task: str, hold: int) -> bool:
        """Whether this broker may do a task now."""
        ...

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        ...

    async def trim_queue(self, topic: Topic, queue_id: int) -> int:
        """Deletes some messages past retention; how many."""
        ...

    async def trim_topic(self, topic: Topic) -> int:
        """Deletes some of the oldest messages of a topic that holds too many bytes; how many."""
        ...

    async def sweep_deleted_topic(self) -> bool:
        """Removes a piece of what deleted topics left; whether anything may be left."""
        ...

    async def trim_dedup_keys(self) -> int:
        """Deletes some dedup keys that keep nothing out any more; how many."""
        ...

    async def trim_ops(self, kept: int) -> int:
        """Deletes some op records older than `kept` microseconds; how many."""
        ...

    async def drop_sink_leftovers(self, kept: int) -> int:
        """Drops some half messages of sinks that no epoch needs, or that wait for longer than `kept` microseconds."""
        ...

    async def trim_events(self, kept: int) -> int:
        """Deletes some records of deliveries older than `kept` microseconds; how many."""
        ...

    async def forget_members(self, unseen: int, limit: int) -> int:
        """Deletes some members of broadcasting groups that were not here for `unseen` microseconds; how many."""
        ...


class RetentionSweeper(Loop):
    """Deletes in small pieces, on one broker at a time."""

    name = "retention"

    def __init__(
        self, store: RetentionStore, *, keep_ops: int, keep_events: int, keep_leftovers: int, interval: float = INTERVAL
    ) -> None:
        """Takes the storage, and what is kept how long.

        Args:
            store: the storage.
            keep_ops: microseconds that op records are kept, and members of broadcasting groups that stay away.
            keep_events: microseconds that records of deliveries are kept.
            keep_leftovers: microseconds that half messages of a sink wait for their epoch.
            interval: seconds between two rounds.
        """
        super().__init__(interval)
        self._store = store
        self._keep_ops = keep_ops
        self._keep_events = keep_events
        self._keep_leftovers = keep_leftovers

    async def run_once(self) -> None:
        """One round over all topics, op records and dedup keys, if it is this broker's turn."""
        if not await self._store.take_turn(TASK, int(3 * self.interval * 1_000_000)):
            return
        after = ""
        while topics := await self._store.list_topics(after, PAGE):
            for topic in topics:
                for queue_id in topic.queue_ids:
                    while await self._store.trim_queue(topic, queue_id):
                        pass
                while topic.retention_bytes and await self._store.trim_topic(topic):
                    pass
            after = topics[-1].name
        while await self._store.sweep_deleted_topic():
            pass
        while await self._store.trim_ops(self._keep_ops):
            pass
        while await self._store.trim_dedup_keys():
            pass
        while await self._store.trim_events(self._keep_events):
            pass
        while await self._store.drop_sink_leftovers(self._keep_leftovers):
            pass
        # Whoever is here notes it every hour.
        while await self._store.forget_members(max(self._keep_ops, 2 * SEEN_EVERY), PAGE):
            pass
