"""Topics and their queues."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from broker.domain.gaps import NO_GAPS, Gaps
from broker.domain.message import queue_for_group
from broker.errors import InvalidArgument, OffsetLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DAY = 24 * 3600 * 1_000_000
MAX_QUEUES = 1024
MAX_PRIORITY_LEVELS = 10
LONGEST_RETENTION = 100 * 366 * DAY
LARGEST_RETENTION = 1 << 62
LONGEST_DEDUP_WINDOW = 366 * DAY


class Compression(IntEnum):
    """How the bodies of new messages are stored."""

    NONE = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic; times in microseconds, `retention_bytes` 0 for no limit."""

    queue_count: int = 4
    retention: int = 3 * DAY
    retention_bytes: int = 0
    dedup_window: int = DAY
    priority_levels: int = 1
    compression: Compression = Compression.NONE

    def check(self, prefix: str = "") -> None:
        """Refuses settings out of bounds.

        Args:
            prefix: prefix of the name of the field at fault, such as `topic.`.

        Raises:
            InvalidArgument: names the field and its bounds.
        """
        for field, most in (("queue_count", MAX_QUEUES), ("priority_levels", MAX_PRIORITY_LEVELS)):
            value = getattr(self, field)
            if not 1 <= value <= most:
                raise InvalidArgument(f"{value} is out of bounds: 1 to {most} are allowed.", field=prefix + field)
        for field, most in (("retention", LONGEST_RETENTION), ("dedup_window", LONGEST_DEDUP_WINDOW)):
            if not 1 <= getattr(self, field) <= most:
                raise InvalidArgument(
                    f"The time must be more than 0 and at most {most // DAY} days.", field=prefix + field
                )
        if not 0 <= self.retention_bytes <= LARGEST_RETENTION:
            raise InvalidArgument(
                f"{self.retention_bytes} bytes; {LARGEST_RETENTION} are allowed, 0 stands for no bound.",
                field=prefix + "retention_bytes",
            )


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Changes of a topic; None leaves a setting unchanged."""

    queue_count: int | None = None
    retention: int | None = None
    retention_bytes: int | None = None
    dedup_window: int | None = None
    compression: Compression | None = None

    def applied_to(self, topic: Topic) -> TopicSettings:
        """The resulting settings."""
        now = topic.settings
        return TopicSettings(
            now.queue_count if self.queue_count is None else self.queue_count,
            now.retention if self.retention is None else self.retention,
            now.retention_bytes if self.retention_bytes is None else self.retention_bytes,
            now.dedup_window if self.dedup_window is None else self.dedup_window,
            now.priority_levels,
            now.compression if self.compression is None else self.compression,
        )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; `queue_ids[n]` is the database's number of queue n; times and durations in microseconds.

    Attributes:
        priorities: the priority of the messages in each queue; empty: 0 for all.
        group_queues: message groups are in the queues below this number, which never changes.
        gaps: the gaps of queues that have some, by the database's number of the queue.
    """

    topic_id: int
    name: str
    retention: int
    created_at: int
    queue_ids: tuple[int, ...]
    priorities: tuple[int, ...] = ()
    retention_bytes: int = 0
    dedup_window: int = DAY
    group_queues: int = 0
    compression: Compression = Compression.NONE
    gaps: Mapping[int, Gaps] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def identity(self) -> str:
        """Distinguishes it from others of its name: earlier or later ones, or in another database."""
        return f"{self.topic_id}-{self.created_at}"

    @property
    def queue_count(self) -> int:
        """Number of queues for messages without a priority."""
        return len(self.queue_ids) - sum(1 for priority in self.priorities if priority)

    @property
    def priority_levels(self) -> int:
        """Number of priorities."""
        return max(self.priorities, default=0) + 1

    @property
    def settings(self) -> TopicSettings:
        """Its settings."""
        return TopicSettings(
            self.queue_count,
            self.retention,
            self.retention_bytes,
            self.dedup_window,
            self.priority_levels,
            self.compression,
        )

    def check_queue(self, queue_no: int) -> None:
        """Refuses the number of a queue that there is not.

        Raises:
            InvalidArgument: there is no such queue.
        """
        if not 0 <= queue_no < len(self.queue_ids):
            raise InvalidArgument(
                f"The topic {self.name!r} has {len(self.queue_ids)} queues, from 0 on; there is no queue {queue_no}.",
                field="queue",
            )

    def gaps_of(self, queue_id: int) -> Gaps:
        """The gaps in the offsets of a queue, by its number in the database."""
        return self.gaps.get(queue_id, NO_GAPS) if self.gaps else NO_GAPS

    def check_offset(self, queue_no: int, offset: int, where: str = "offset") -> None:
        """Refuses an offset of a time that a restore of the database undid.

        Args:
            queue_no: the number of the queue, which there is.
            offset: all messages below it were read.
            where: the name of the field it came in.

        Raises:
            OffsetLost: whoever has got this far has read messages that no longer exist.
        """
        gap = self.gaps_of(self.queue_ids[queue_no]).lost(offset)
        if gap is not None:
            raise OffsetLost(self.name, queue_no, offset, gap, where)

    def queue_of_group(self, message_group: str) -> int:
        """The queue number that a message group always goes to."""
        return queue_for_group(message_group, self.group_queues or self.queue_count)

    def choose_queue(self, queue_no: int | None, priority: int, rotation: int) -> int:
        """The database's number of the queue for a message: the given one, or one of its priority, in rotation."""
        if queue_no is not None:
            return self.queue_ids[queue_no]
        if not self.priorities:
            return self.queue_ids[rotation % len(self.queue_ids)]
        fitting = self._of_priority(priority)
        return fitting[rotation % len(fitting)]

    def fitting_queues(self, queue_no: int | None, priority: int, rotation: int) -> Sequence[int]:
        """All queues that a message may go to; `choose_queue`'s is the first."""
        if queue_no is not None:
            return [self.queue_ids[queue_no]]
        fitting = self._of_priority(priority) if self.priorities else self.queue_ids
        first = rotation % len(fitting)
        return [*fitting[first:], *fitting[:first]]

    def _of_priority(self, priority: int) -> list[int]:
        return [i for i, own in zip(self.queue_ids, self.priorities, strict=True) if own == priority]


@dataclass(frozen=True, slots=True)
class QueueState:
    """First and last offset of a queue, and a group's progress in it.

    Attributes:
        waiting_since: when the first message that the group has not handled became visible (microseconds).
        client_id: the member, in a broadcasting group.
        topic_identity: distinguishes the topic from others of its name.
        gaps: the gaps in the queue's offsets.
    """

    topic: str
    queue_no: int
    min_offset: int
    max_offset: int
    next_offset: int = 0
    committed_offset: int = 0
    in_flight: int = 0
    priority: int = 0
    stored_bytes: int = 0
    waiting_since: int | None = None
    client_id: str = ""
    topic_identity: str = ""
    gaps: Gaps = NO_GAPS

    @property
    def kept(self) -> int:
        """Messages that are kept."""
        return self.gaps.count(self.min_offset, self.max_offset)

    @property
    def lag(self) -> int:
        """Messages that the group has not handled: in flight, and never delivered."""
        return self.in_flight + self.gaps.count(max(self.next_offset, self.min_offset), self.max_offset)
