"""The watcher of end offsets looks at topics that somebody waits for, less often where these are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.maintenance.end_offset_watcher import BUSY_INTERVAL, INTERVAL, QUEUES_PER_SECOND, EndOffsetWatcher
from broker.services.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.place import Queue

ORDERS = 1


class Ends:
    """Queues of any topic, all with the same end; notes what was asked for."""

    def __init__(self, queues: int = 4) -> None:
        self.queues, self.end = queues, 5
        self.asked: list[list[int]] = []

    async def end_offsets(self, topic_ids: Sequence[int]) -> dict[Queue, int]:
        self.asked.append(list(topic_ids))
        return {(topic_id, number): self.end for topic_id in topic_ids for number in range(self.queues)}


async def test_only_topics_that_somebody_waits_for_are_looked_at() -> None:
    store, wakeups = Ends(), Wakeups()
    watcher = EndOffsetWatcher(store, wakeups)
    await watcher.run_once()
    assert store.asked == []
    with wakeups.listen([ORDERS]):
        await watcher.run_once()
    assert store.asked == [[ORDERS]]


async def test_it_looks_more_often_while_others_release() -> None:
    store, wakeups = Ends(), Wakeups()
    watcher = EndOffsetWatcher(store, wakeups)
    with wakeups.listen([ORDERS]):
        await watcher.run_once()
        assert watcher.interval == INTERVAL
        store.end += 1
        await watcher.run_once()
        assert watcher.interval == BUSY_INTERVAL


async def test_it_looks_less_often_where_queues_are_many() -> None:
    store, wakeups = Ends(queues=QUEUES_PER_SECOND), Wakeups()
    watcher = EndOffsetWatcher(store, wakeups)
    with wakeups.listen([ORDERS]):
        await watcher.run_once()
        assert watcher.interval == 1.0
