"""What the broker does by itself: releasing what is due, deleting what is old, following the database's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.domain.place import Queue
    from broker.domain.topic import Topic


@dataclass(slots=True)
class Moved:
    """Scheduled messages that went into the log.

    Attributes:
        count: how many.
        dropped: how many were dropped, for their topic was deleted.
        end_offsets: where the queues end now that they went to.
        next_due: when the next one is due; None: none waits.
        busy: another broker is at it.
    """

    count: int = 0
    dropped: int = 0
    end_offsets: dict[Queue, int] = field(default_factory=dict)
    next_due: int | None = None
    busy: bool = False


class ScheduleStore(Protocol):
    """What the scheduler asks of the storage."""

    async def move_due(self, *, known: bool = False) -> Moved:
        """Moves scheduled messages whose time has come into the log, as many as go in one transaction."""
        ...


class RetentionStore(Protocol):
    """What the sweeper asks of the storage."""

    async def take_maintenance_lock(self, task: str, hold: int) -> bool:
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

    async def deleted_topics(self, after: int, limit: int) -> list[int]:
        """The numbers of topics that are deleted and not all gone, in their order."""
        ...

    async def sweep_deleted_topic(self, topic_id: int) -> bool:
        """Removes a piece of what a deleted topic left; whether anything is left."""
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


class ClockStore(Protocol):
    """The database's clock."""

    async def synchronise_clock(self) -> None:
        """Reads the database's time again."""
        ...
