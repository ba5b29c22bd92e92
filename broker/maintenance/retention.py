"""Deletes expired data: heads of queues, deleted topics, op records, dedup keys, delivery events, and so on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.maintenance.loop import Loop
from broker.ports.connections import SILENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.domain.topic import Topic
    from broker.maintenance.turn_keeper import Turn
    from broker.ports.upkeep import RetentionStore

INTERVAL = 30.0
KEEP_REFUSED = 30 * 24 * 3600 * 1_000_000
"""Microseconds that submissions which were refused stay for an operator."""
KEEP_AUDIT = 366 * 24 * 3600 * 1_000_000
SEEN_EVERY = 3600 * 1_000_000
TASK = "retention"
PAGE = 1000


class RetentionSweeper(Loop):
    """Deletes in small batches, on one broker at a time."""

    name = "retention"

    def __init__(
        self,
        store: RetentionStore,
        turn: Turn,
        *,
        keep_ops: int,
        keep_events: int,
        keep_leftovers: int,
        keep_audit: int = KEEP_AUDIT,
        interval: float = INTERVAL,
    ) -> None:
        """Takes the storage and the retention times.

        Args:
            store: the storage.
            turn: whether it is this broker's.
            keep_ops: microseconds that op records are kept, and absent members of broadcasting groups.
            keep_events: microseconds that records of deliveries are kept.
            keep_leftovers: microseconds that half messages of a sink wait for their epoch.
            keep_audit: microseconds that records of who did what are kept.
            interval: seconds between two rounds.
        """
        super().__init__(interval)
        self._store = store
        self._turn = turn
        turn.loop = self
        self._keep_ops = keep_ops
        self._keep_events = keep_events
        self._keep_leftovers = keep_leftovers
        self._keep_audit = keep_audit

    async def run_once(self) -> None:
        """One round over all topics, op records and dedup keys, if it is this broker's turn.

        A failure in one place is logged and retried in the next round; the others proceed.
        """
        if not self._turn.mine:
            return
        await self.run_piece("the topics", self._trim_topics)
        await self.run_piece("dead letter topics without a group", self._delete_orphaned_topics)
        await self.run_piece("deleted topics", self._sweep_deleted_topics)
        store = self._store
        await self._all_of("op records", lambda: store.trim_ops(self._keep_ops))
        await self._all_of("dedup keys", store.trim_dedup_keys)
        await self._all_of("records of deliveries", lambda: store.trim_events(self._keep_events))
        await self._all_of("half messages of sinks", lambda: store.drop_sink_leftovers(self._keep_leftovers))
        await self._all_of("refused submissions", lambda: store.trim_refused_submissions(KEEP_REFUSED))
        await self._all_of("records of who did what", lambda: store.trim_audit(self._keep_audit))
        await self._all_of("brokers that are gone", lambda: store.forget_silent_brokers(SILENT))
        # Present members record it every hour.
        unseen = max(self._keep_ops, 2 * SEEN_EVERY)
        await self._all_of("members of broadcasting groups", lambda: store.forget_members(unseen, PAGE))

    async def _trim_topics(self) -> None:
        told: list[bool] = []

        async def where_expired() -> None:
            after: int | None = 0
            while after is not None:
                wanted = await self._store.to_trim(after, PAGE)
                for topic in wanted.topics:
                    expired = [queue_id for queue_id in topic.queue_ids if queue_id in wanted.queues]
                    await self._trim(topic, expired, large=topic.topic_id in wanted.large)
                after = wanted.last
            told.append(True)

        await self.run_piece("what has expired", where_expired)
        if not told:
            await self._trim_all_topics()

    async def _trim_all_topics(self) -> None:
        """Looks at each queue by itself: where one cannot be read, the others can."""
        after = ""
        while topics := await self._store.list_topics(after, PAGE):
            for topic in topics:
                await self._trim(topic, topic.queue_ids, large=topic.retention_bytes > 0)
            after = topics[-1].name

    async def _trim(self, topic: Topic, queue_ids: Sequence[int], *, large: bool) -> None:
        for queue_id in queue_ids:
            trim = partial(self._store.trim_queue, topic, queue_id)
            await self._all_of(f"topic {topic.name!r}, queue {queue_id}", trim, topic=topic.name)
        if large:
            trim = partial(self._store.trim_topic, topic)
            await self._all_of(f"size of topic {topic.name!r}", trim, topic=topic.name)

    async def _delete_orphaned_topics(self) -> None:
        after = 0
        while topic_ids := await self._store.orphaned_dead_letters(after, PAGE):
            for topic_id in topic_ids:
                piece = partial(self._store.delete_orphaned, topic_id)
                await self.run_piece(f"dead letter topic {topic_id}", piece)
            after = topic_ids[-1]

    async def _sweep_deleted_topics(self) -> None:
        after = 0
        while topic_ids := await self._store.deleted_topics(after, PAGE):
            for topic_id in topic_ids:
                await self._all_of(f"deleted topic {topic_id}", partial(self._store.sweep_deleted_topic, topic_id))
            after = topic_ids[-1]

    async def _all_of(self, what: str, one_piece: Callable[[], Awaitable[object]], **about: object) -> None:
        """Runs batches of one kind until nothing is left."""

        async def all_pieces() -> None:
            while await one_piece():
                pass

        await self.run_piece(what, all_pieces, **about)
