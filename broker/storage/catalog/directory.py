"""A short-lived cache of the tables `topic` and `queue`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from broker.domain.gaps import by_queue
from broker.domain.topic import Compression, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.storage.engine.session import Session

REMEMBERED_FOR = 2.0
LEAST_DROPPED = 1024
"""Topics in the cache before outdated ones are dropped: other brokers may have deleted them, and tell nobody."""

TOPIC_COLUMNS = "topic_id, name, retention, created_at, retention_bytes, dedup_window, group_queues, compression"


class Directory:
    """Topics by name, by id and by queue, cached briefly; used by every lane.

    A result that was read while an entry was dropped is not cached: it may be older than the change.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Starts empty."""
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._by_name: dict[str, tuple[float, Topic]] = {}
        self._by_id: dict[int, tuple[float, Topic]] = {}
        self._by_queue: dict[int, tuple[Topic, int]] = {}
        self._drops = 0
        self._most = LEAST_DROPPED

    def peek(self, name: str) -> Topic | None:
        """A cached topic."""
        entry = self._by_name.get(name)
        return entry[1] if entry and entry[0] > self._monotonic() else None

    def peek_id(self, topic_id: int) -> Topic | None:
        """A cached topic, by id."""
        entry = self._by_id.get(topic_id)
        return entry[1] if entry and entry[0] > self._monotonic() else None

    def peek_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a cached queue."""
        return self._by_queue.get(queue_id)

    def by_name(self, session: Session, name: str) -> Topic | None:
        """A topic by name."""
        return self.peek(name) or next(iter(self._load(session, "name", [name])), None)

    def by_ids(self, session: Session, topic_ids: Iterable[int]) -> dict[int, Topic]:
        """Topics by id; missing ones are omitted."""
        wanted = set(topic_ids)
        now = self._monotonic()
        found = {i: entry[1] for i in wanted if (entry := self._by_id.get(i)) and entry[0] > now}
        if missing := wanted - found.keys():
            found.update({topic.topic_id: topic for topic in self._load(session, "topic_id", sorted(missing))})
        return found

    def of_queue(self, session: Session, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue. Queues never move, so this is cached for longer than the rest."""
        if (known := self._by_queue.get(queue_id)) is not None:
            return known
        row = session.fetch_one("SELECT topic_id FROM queue WHERE queue_id = ?", (queue_id,))
        found = self._load(session, "topic_id", [row[0]]) if row is not None else []
        return next(((topic, topic.queue_ids.index(queue_id)) for topic in found if queue_id in topic.queue_ids), None)

    def forget(self, topic: Topic) -> None:
        """Drops a topic from the cache."""
        with self._lock:
            self._drops += 1
            self._by_name.pop(topic.name, None)
            self._by_id.pop(topic.topic_id, None)
            for queue_id in topic.queue_ids:
                self._by_queue.pop(queue_id, None)

    def forget_ids(self, topic_ids: Iterable[int]) -> None:
        """Drops deleted topics from the cache, by id."""
        self._forget_entries(self._by_id.get(topic_id) for topic_id in topic_ids)

    def clear(self) -> None:
        """Clears the cache."""
        with self._lock:
            self._drops += 1
            self._by_name.clear()
            self._by_id.clear()
            self._by_queue.clear()

    def notice(self, queues: Iterable[tuple[int, int]]) -> None:
        """Drops topics with new queues from the cache, given existing queues.

        Args:
            queues: topic id and queue id.
        """
        for topic_id, queue_id in queues:
            entry = self._by_id.get(topic_id)
            if entry is not None and queue_id not in entry[1].queue_ids:
                self.forget(entry[1])

    def forget_names(self, names: Iterable[str]) -> None:
        """Drops these names from the cache: another broker may have deleted or re-created the topics."""
        self._forget_entries(self._by_name.get(name) for name in names)

    def _forget_entries(self, entries: Iterable[tuple[float, Topic] | None]) -> None:
        found = list(entries)
        if not found:
            return
        with self._lock:
            # Also for names that are not cached: they may currently be read.
            self._drops += 1
        for entry in found:
            if entry is not None:
                self.forget(entry[1])

    def _load(self, session: Session, column: str, keys: list[str] | list[int]) -> list[Topic]:
        query = f"SELECT {TOPIC_COLUMNS} FROM topic WHERE deleted_at IS NULL AND {column}"
        return self.load(session, lambda: session.fetch_in(query, keys))

    def load(self, session: Session, fetch: Callable[[], Iterable[tuple[Any, ...]]]) -> list[Topic]:
        """Topics with their queues, cached.

        Args:
            session: to read their queues.
            fetch: reads the rows of TOPIC_COLUMNS.
        """
        drops = self._drops
        topics = read_topics(session, fetch())
        until = self._monotonic() + REMEMBERED_FOR
        with self._lock:
            if self._drops != drops:
                return topics
            for topic in topics:
                self._by_name[topic.name] = self._by_id[topic.topic_id] = (until, topic)
                for number, queue_id in enumerate(topic.queue_ids):
                    self._by_queue[queue_id] = (topic, number)
            if len(self._by_id) > self._most:
                self._drop_outdated()
        return topics

    def _drop_outdated(self) -> None:
        """Drops what has to be read again anyway; the next time when there is twice as much as is left."""
        now = self._monotonic()
        self._by_id = {topic_id: entry for topic_id, entry in self._by_id.items() if entry[0] > now}
        self._by_name = {name: entry for name, entry in self._by_name.items() if entry[0] > now}
        self._by_queue = {
            queue_id: entry for queue_id, entry in self._by_queue.items() if entry[0].topic_id in self._by_id
        }
        self._most = max(LEAST_DROPPED, 2 * len(self._by_id))


def read_by_name(session: Session, name: str) -> Topic | None:
    """A topic by name as the transaction sees it; not cached."""
    rows = session.fetch_in(f"SELECT {TOPIC_COLUMNS} FROM topic WHERE deleted_at IS NULL AND name", [name])
    return next(iter(read_topics(session, rows)), None)


def read_topics(session: Session, rows: Iterable[tuple[Any, ...]]) -> list[Topic]:
    """Topics from rows of TOPIC_COLUMNS, with their queues; not cached."""
    rows = list(rows)
    queues: dict[int, dict[int, int]] = {row[0]: {} for row in rows}
    gaps: dict[int, list[tuple[int, int, int]]] = {row[0]: [] for row in rows}
    # Uses queue_of_topic, in order of the queue numbers, and the primary key of offset_gap.
    for topic_id, queue_id, priority, first, end in session.fetch_in(
        "SELECT q.topic_id, q.queue_id, q.priority, offset_gap.first_offset, offset_gap.end_offset FROM queue q"
        f" LEFT JOIN offset_gap{session.dialect.by_key} ON offset_gap.queue_id = q.queue_id WHERE q.topic_id",
        list(queues),
        " ORDER BY q.topic_id, q.queue_no",
    ):
        queues[topic_id][queue_id] = priority
        if first is not None:
            gaps[topic_id].append((queue_id, first, end))
    topics = []
    for topic_id, name, retention, created_at, retention_bytes, dedup_window, group_queues, compression in rows:
        priorities = tuple(queues[topic_id].values())
        topics.append(
            Topic(
                topic_id,
                name,
                retention,
                created_at,
                tuple(queues[topic_id]),
                priorities if any(priorities) else (),
                retention_bytes,
                dedup_window,
                group_queues,
                Compression(compression),
                by_queue(gaps[topic_id]) if gaps[topic_id] else {},
            )
        )
    return topics
