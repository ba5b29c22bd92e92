"""Topics, their queues, and consumer groups."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `queue_ids[n]` is the database's number of queue n; times and durations in microseconds."""

    topic_id: int
    name: str
    retention: int
    created_at: int
    queue_ids: tuple[int, ...]

    @property
    def queue_count(self) -> int:
        """Number of queues."""
        return len(self.queue_ids)


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group; `created_at` in microseconds."""

    group_id: int
    name: str
    max_attempts: int
    created_at: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where a queue begins and ends, and how far a group has come in it."""

    topic: str
    queue_no: int
    min_offset: int
    max_offset: int
    next_offset: int = 0
    committed_offset: int = 0
    in_flight: int = 0

    @property
    def lag(self) -> int:
        """Messages that the group has not handled: in flight, and never handed out."""
        return self.in_flight + max(0, self.max_offset - max(self.next_offset, self.min_offset))
