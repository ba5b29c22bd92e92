"""Wakes waiters for messages: on a release, or when a lease becomes available."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from broker.domain.place import Queue
    from broker.ports.delivery import GroupNews
    from broker.services.positions import Released


MOST_ANNOUNCED = 20_000
"""Queues whose ends are remembered, beside those of topics that somebody waits for: of deleted topics, too."""


class Wakeups:
    """Waiters by topic, and by group for leases."""

    def __init__(self) -> None:
        """Starts without waiters."""
        self._by_topic: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._by_group: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._topics: dict[asyncio.Event, list[int]] = {}
        self._announced: dict[Queue, int] = {}
        self._most = MOST_ANNOUNCED
        self._shorter: set[Queue] = set()
        self._epochs: dict[int, int] = {}
        self.on_scheduled: Callable[[int], None] = lambda due: None
        self.draining = False

    def drain(self) -> None:
        """Ends every wait."""
        self.draining = True
        self.wake_all()

    @property
    def waiting_topics(self) -> list[int]:
        """Ids of the topics that somebody waits for."""
        return list(self._by_topic)

    @property
    def waiting_groups(self) -> dict[int, set[int]]:
        """Groups with waiting consumers, and the ids of their topics."""
        return {
            group_id: {topic_id for event in events for topic_id in self._topics[event]}
            for group_id, events in self._by_group.items()
        }

    @contextmanager
    def listen(self, topic_ids: Iterable[int], group_id: int | None = None) -> Iterator[asyncio.Event]:
        """An event that is set when messages may be available; clear it before each query."""
        event = asyncio.Event()
        topic_ids = list(topic_ids)
        for topic_id in topic_ids:
            self._by_topic[topic_id].add(event)
        if group_id is not None:
            self._by_group[group_id].add(event)
        self._topics[event] = topic_ids
        try:
            yield event
        finally:
            del self._topics[event]
            for topic_id in topic_ids:
                _remove(self._by_topic, topic_id, event)
            if group_id is not None:
                _remove(self._by_group, group_id, event)

    def arrived(self, released: Released) -> None:
        """Called when this broker has released or scheduled messages."""
        self.released(released.end_offsets)
        if released.next_due is not None:
            self.on_scheduled(released.next_due)

    def released(self, end_offsets: Mapping[Queue, int]) -> None:
        """Called when this broker has released messages to queues, below these offsets."""
        for queue, end in end_offsets.items():
            self._announced[queue] = max(end, self._announced.get(queue, 0))
        if len(self._announced) > self._most:
            self._forget(lambda topic_id: topic_id in self._by_topic)
            self._most = MOST_ANNOUNCED + 2 * len(self._announced)
        self._wake({topic_id for topic_id, _ in end_offsets})

    def grown_to(self, end_offsets: Mapping[Queue, int], topic_ids: Collection[int]) -> bool:
        """Updates the ends of all queues of some topics. Releases of this broker do not wake waiters again.

        Returns:
            Whether another broker has released messages since these topics were looked at before.

        A queue's offsets become visible in order: a wake-up for one covers all before it.
        """
        has_grown = False
        grown = set()
        for queue, end in end_offsets.items():
            before = self._announced.get(queue)
            if before is not None and end < before:
                # Looked at before this broker's last release; or, if it is so twice, the database was restored.
                if queue in self._shorter:
                    self._announced[queue] = end
                self._shorter ^= {queue}
                continue
            self._shorter.discard(queue)
            if before is None or end > before:
                self._announced[queue] = end
                has_grown |= before is not None
                if end:
                    grown.add(queue[0])
        gone = set(topic_ids) - {topic_id for topic_id, _ in end_offsets}
        if gone:
            self._forget(lambda topic_id: topic_id not in gone)
        # Waiters of a deleted topic are woken, too.
        self._wake(grown | gone)
        return has_grown

    def _forget(self, kept: Callable[[int], bool]) -> None:
        """Forgets the ends of queues of other topics than these."""
        self._announced = {queue: end for queue, end in self._announced.items() if kept(queue[0])}
        self._shorter &= self._announced.keys()

    def _wake(self, topic_ids: Iterable[int]) -> None:
        for topic_id in topic_ids:
            for event in self._by_topic.get(topic_id, ()):
                event.set()

    def told(self, news: Mapping[int, GroupNews]) -> None:
        """Wakes consumers of groups with an available lease, and of those that were changed or deleted."""
        changed = [
            group_id
            for group_id in self._by_group
            if group_id not in news or news[group_id].due or news[group_id].epoch != self._epochs.get(group_id)
        ]
        self._epochs = {group_id: each.epoch for group_id, each in news.items()}
        self.leases_free(changed)

    def leases_free(self, group_ids: Iterable[int]) -> None:
        """Called when leases of these groups are available."""
        for group_id in group_ids:
            for event in self._by_group.get(group_id, ()):
                event.set()

    def wake_all(self) -> None:
        """Wakes all waiters, to check whether to continue."""
        for events in list(self._by_topic.values()):
            for event in events:
                event.set()


def _remove(waiters: dict[int, set[asyncio.Event]], key: int, event: asyncio.Event) -> None:
    waiters[key].discard(event)
    if not waiters[key]:
        del waiters[key]


async def signal(event: asyncio.Event, until: float) -> bool:
    """Waits for an event until a time of the loop; returns whether it was set."""
    left = until - asyncio.get_running_loop().time()
    if left <= 0:
        return False
    try:
        async with asyncio.timeout(left):
            await event.wait()
    except TimeoutError:
        return False
    return True
