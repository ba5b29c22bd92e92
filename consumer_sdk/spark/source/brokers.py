"""The driver's calls to the brokers: existing queues, the start of a query, and its progress."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import grpc

from client_core.admin import Admin
from consumer_sdk.errors import ConfigurationError, RequestRefused
from consumer_sdk.reading import QueueMeasure, QueueReader
from consumer_sdk.spark.bounds import EARLIEST, LATEST
from consumer_sdk.spark.options import ReadOptions
from consumer_sdk.spark.source.offsets import replaced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from consumer_sdk.reading import Gaps, OffsetGap, QueueOffset
    from consumer_sdk.spark.bounds import Bound
    from consumer_sdk.spark.source.offsets import Offsets, Queue, TopicIds

__all__ = ["Brokers", "of_lost", "require_topic"]


class Brokers:
    """The driver's connections; opened by the first call, and never sent to executors."""

    def __init__(self, options: ReadOptions) -> None:
        """Reads the settings."""
        connection = options.connection.connection()
        self._options = options
        self._reader = QueueReader(connection)
        self._admin = Admin(connection)
        self._seen: set[str] = set()
        self._reported: Offsets = {}
        self.topic_ids: TopicIds = {}
        self.gaps: dict[Queue, Gaps] | None = None

    def queues(self, time: datetime | None = None, *, missing_ok: bool = False) -> dict[Queue, QueueOffset]:
        """All queues to read, without those of deleted topics.

        Afterwards `topic_ids` has their topics' identities, and `gaps` the gaps in their offsets.

        Args:
            time: A time whose offsets to return.
            missing_ok: Whether a topic that never existed during this run counts as deleted, too: an earlier run may
                have seen it.

        Raises:
            RequestRefused: There is no such topic.
        """
        found: dict[Queue, QueueOffset] = {}
        topic_ids: TopicIds = {}
        for topic in self._topics():
            try:
                queues = self._reader.queue_offsets(topic, time=time)
            except RequestRefused as error:
                if error.code is not grpc.StatusCode.NOT_FOUND or not (missing_ok or topic in self._seen):
                    raise
                continue
            self._seen.add(topic)
            found |= {(topic, each.queue): each for each in self._assigned(topic, queues)}
            topic_ids[topic] = queues[0].topic_id if queues else ""
        self.topic_ids = topic_ids
        self.gaps = {queue: each.gaps for queue, each in found.items() if each.gaps.gaps}
        return found

    def _assigned(self, topic: str, queues: Sequence[QueueOffset]) -> Sequence[QueueOffset]:
        if self._options.assigned is None:
            return queues
        wanted = self._options.assigned[topic]
        if missing := sorted(wanted - {each.queue for each in queues}):
            msg = f"assign names queue {missing[0]} of {topic!r}, which has {len(queues)}, numbered from 0 on"
            raise ConfigurationError(msg, field="assign")
        return [each for each in queues if each.queue in wanted]

    def _topics(self) -> Sequence[str]:
        pattern = self._options.topic_pattern
        if pattern is None:
            return self._options.topics
        matching = [topic.name for topic in self._admin.list_topics() if re.fullmatch(pattern, topic.name)]
        self._seen.update(matching)
        return matching

    def created_at(self, topic: str) -> str:
        """A topic's creation time as text; another time means another topic of the same name."""
        return str(self._admin.get_topic(topic).created_at)

    def place(self, bound: Bound, option: str) -> Offsets:
        """Resolves a bound in all existing queues.

        Raises:
            ConfigurationError: It names a missing queue or an offset beyond a queue's end, or belongs to other topics
                of these names.
        """
        if isinstance(bound, datetime):
            return self.place_at(bound)
        found = self.queues()
        if isinstance(bound, str):
            end = {"earliest": EARLIEST, "latest": LATEST}[bound]
            return {queue: _offset_of(each, end) for queue, each in found.items()}
        if others := sorted(replaced(self._options.topic_ids.get(option, {}), self.topic_ids)):
            msg = f"{option} are of another topic {others[0]!r}, which was deleted; give offsets of the new one"
            raise ConfigurationError(msg, field=option)
        named: Offsets = {}
        times: dict[datetime, list[Queue]] = {}
        for topic, queues in bound.items():
            for queue, value in queues.items():
                if (topic, queue) not in found:
                    read = "is not assigned" if self._options.assigned is not None else "does not exist"
                    msg = f"{option} names queue {queue} of {topic!r}, which {read}"
                    raise ConfigurationError(msg, field=option)
                if isinstance(value, datetime):
                    times.setdefault(value, []).append((topic, queue))
                else:
                    named[topic, queue] = value
        for (topic, queue), offset in sorted(named.items()):
            end = found[topic, queue].max_offset
            if offset > end:
                msg = f"{option} names offset {offset} of queue {queue} of {topic!r}, which ends at {end}"
                raise ConfigurationError(msg, field=option)
            if (gap := found[topic, queue].gaps.lost(offset)) is not None:
                msg = f"{option} names offset {offset} of queue {queue} of {topic!r}: {of_lost(gap)}"
                raise ConfigurationError(msg, field=option)
        for time, at_time in times.items():
            placed = self.place_at(time)
            named |= {queue: placed[queue] for queue in at_time if queue in placed}
        # Queues that are not named are read completely.
        otherwise = EARLIEST if option.startswith("starting") else LATEST
        return {queue: _offset_of(each, named.get(queue, otherwise)) for queue, each in found.items()}

    def place_at(self, time: datetime) -> Offsets:
        """The first offset at a time in all existing queues; where there is nothing later, the queue's end."""
        return {
            queue: each.max_offset if each.offset_at_time is None else each.offset_at_time
            for queue, each in self.queues(time).items()
        }

    def within(self, start: Mapping[Queue, int], end: Mapping[Queue, int], most: int) -> Offsets:
        """The end of a micro-batch with at most so many bytes of bodies.

        Every queue gets a share of the bytes, and at least one message, so that none starves.

        Args:
            start: Where it begins, in every queue.
            end: Where it may end.
            most: Maximum bytes.
        """
        sizes = {queue: self._measure(queue, start[queue], end[queue]).bytes for queue in end}
        total = sum(sizes.values())
        if total <= most:
            return dict(end)
        shares = {queue: max(1, size * most // total) for queue, size in sizes.items()}
        return {
            queue: self._measure(queue, start[queue], end[queue], share).end_offset for queue, share in shares.items()
        }

    def _measure(self, queue: Queue, start: int, end: int, most: int | None = None) -> QueueMeasure:
        if start >= end:
            return QueueMeasure(end, 0)
        topic_id = self.topic_ids.get(queue[0])
        try:
            return self._reader.measure_queue(*queue, start, end, max_bytes=most, topic_id=topic_id)
        except RequestRefused as error:
            if error.code is not grpc.StatusCode.NOT_FOUND and error.reason != "TOPIC_REPLACED":
                raise
            # Deleted a moment ago, and perhaps re-created: its readers get an error.
            return QueueMeasure(end, 0)

    def report(self, done: Offsets) -> None:
        """Reports the query's progress to the brokers, if it has a group and has advanced since the last time.

        The offsets belong to the topics that were queried last.

        Raises:
            RequestRefused: There is no such group, or it has consumers.
        """
        group = self._options.group
        if group is None or done == self._reported:
            return
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, queue), offset in done.items():
            by_topic.setdefault(topic, {})[queue] = offset
        for topic, offsets in by_topic.items():
            try:
                self._reader.commit_offsets(topic, group, offsets, topic_id=self.topic_ids.get(topic))
            except RequestRefused as error:
                # Re-created since then: the next query of the queues reports it.
                if error.reason != "TOPIC_REPLACED":
                    raise
        self._reported = dict(done)

    def close(self) -> None:
        """Closes the connections."""
        self._reader.close()
        self._admin.close()


def of_lost(gap: OffsetGap) -> str:
    """What an offset in a gap means."""
    return (
        f"the database was restored to a moment when the queue ended at {gap.first_offset}; it goes on at"
        f" {gap.end_offset}"
    )


def _offset_of(queue: QueueOffset, offset: int) -> int:
    return {EARLIEST: queue.min_offset, LATEST: queue.max_offset}.get(offset, offset)


def require_topic(connection: Mapping[str, str], topic: str) -> None:
    """Ensures that a topic exists, before computing what is to be written to it.

    Args:
        connection: The options endpoint and TLS.
        topic: The topic.

    Raises:
        RequestRefused: There is no such topic.
    """
    brokers = Brokers(ReadOptions.read({**connection, "topic": topic}))
    try:
        brokers.queues()
    finally:
        brokers.close()
