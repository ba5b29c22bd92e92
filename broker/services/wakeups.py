"""Wakes waiters for messages: on a release, or when a lease becomes available."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from broker.domain.place import Queue
    from broker.ports.delivery import GroupNews
    from broker.services.positions import Released


MOST_ANNOUNCED = 20_000
"""Queues whose ends are remembered where nobody waits: of deleted topics, too, as nothing tells what there is."""


class Wakeups:
    """Waiters by topic, and by group for leases."""

    def __init__(self) -> None:
        """Starts without waiters."""
        self._by_topic: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._by_group: dict[int, set[asyncio.Event]] = defaultdict(set)
        self._topics: dict[asyncio.Event, list[int]] = {}
        self._announced: dict[Queue, int] = {}
        self._epochs: dict[int, int] = {}
        self.on_scheduled: Callable[[int], None] = lambda due: None
        self.draining = False

    def drain(self) -> None:
        """Ends every wait."""
        self.draining = True
        self.wake_all()

    @property
    def waiting(self) -> bool:
        """Whether there are waiters."""
        return bool(self._by_topic)

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
        if len(self._announced) > MOST_ANNOUNCED and not self.waiting:
            self._announced = dict(end_offsets)
        self._wake({topic_id for topic_id, _ in end_offsets})

    def grown_to(self, end_offsets: Mapping[Queue, int]) -> bool:
        """Updates the ends of all queues. Releases of this broker do not wake waiters again.

        Returns:
            Whether another broker has released messages.

        A queue's offsets become visible in order: a wake-up for one covers all before it.
        """
        announced, self._announced = self._announced, {}
        for queue, end in end_offsets.items():
            self._announced[queue] = max(end, announced.get(queue, 0))
        grown = {queue[0] for queue, end in end_offsets.items() if end > announced.get(queue, 0)}
        # Waiters of a deleted topic are woken, too.
        self._wake(grown | self._by_topic.keys() - {topic_id for topic_id, _ in end_offsets})
        return bool(grown)

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
