"""Background work: releasing due messages, deleting expired data, synchronising the clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.place import Queue
    from broker.domain.topic import Topic


@dataclass(slots=True)
class Moved:
    """Result of moving scheduled messages into the log.

    Attributes:
        count: number of messages.
        dropped: number of messages dropped because their topic was deleted.
        end_offsets: the new ends of their queues.
        next_due: when the next one is due; None: none is scheduled.
        busy: another broker is moving messages.
    """

    count: int = 0
    dropped: int = 0
    end_offsets: dict[Queue, int] = field(default_factory=dict)
    next_due: int | None = None
    busy: bool = False


@dataclass(frozen=True, slots=True)
class ToTrim:
    """What has to be deleted of some topics.

    Attributes:
        topics: those in which there is something to be deleted.
        queues: queues whose first message is past retention.
        large: ids of topics that exceed their size.
        last: the last id that was looked at; None: there are no more topics.
    """

    topics: Sequence[Topic]
    queues: Collection[int]
    large: Collection[int]
    last: int | None


class PrimaryStore(Protocol):
    """The port of what follows the database's primary."""

    async def look_for_primary(self) -> None:
        """Asks the database's servers which one accepts writes; connections to a former primary are cut."""
        ...


class ScheduleStore(Protocol):
    """The scheduler's port."""

    async def move_due(self, *, known: bool = False) -> Moved:
        """Moves due messages into the log, as many as fit into one transaction."""
        ...


class TurnStore(Protocol):
    """The port of work that one broker does at a time."""

    async def take_turn(self, task: str, hold: int) -> bool:
        """Whether it is this broker's turn for a task; it keeps the turn for `hold` microseconds."""
        ...

    async def leave_turns(self) -> None:
        """Gives up all turns of this broker."""
        ...


class RetentionStore(Protocol):
    """The port of retention."""

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        ...

    async def to_trim(self, after: int, limit: int) -> ToTrim:
        """What has to be deleted of the topics behind an id, as many as `limit`."""
        ...

    async def trim_queue(self, topic: Topic, queue_id: int) -> int:
        """Deletes some messages past retention; returns how many."""
        ...

    async def trim_topic(self, topic: Topic) -> int:
        """Deletes some of the oldest messages of a topic that exceeds its size; returns how many."""
        ...

    async def trim_audit(self, kept: int) -> int:
        """Deletes some records of who did what that are older than `kept` microseconds; returns how many."""
        ...

    async def orphaned_dead_letters(self, after: int, limit: int) -> list[int]:
        """The ids of empty dead letter topics whose group was deleted, once their retention has passed, in order."""
        ...

    async def delete_orphaned(self, topic_id: int) -> None:
        """Deletes such a topic, unless somebody needs it by now."""
        ...

    async def deleted_topics(self, after: int, limit: int) -> list[int]:
        """The ids of deleted topics with remaining data, in order."""
        ...

    async def sweep_deleted_topic(self, topic_id: int) -> bool:
        """Removes a part of a deleted topic's data; returns whether any is left."""
        ...

    async def trim_dedup_keys(self) -> int:
        """Deletes some expired dedup keys; returns how many."""
        ...

    async def trim_ops(self, kept: int) -> int:
        """Deletes some op records older than `kept` microseconds; returns how many."""
        ...

    async def drop_sink_leftovers(self, kept: int) -> int:
        """Drops some half messages of sinks that no epoch needs, or that are older than `kept` microseconds."""
        ...

    async def trim_events(self, kept: int) -> int:
        """Deletes some delivery events older than `kept` microseconds; returns how many."""
        ...

    async def trim_refused_submissions(self, kept: int) -> int:
        """Deletes some submissions that were refused more than `kept` microseconds ago; returns how many."""
        ...

    async def forget_silent_brokers(self, silent: int) -> int:
        """Removes brokers that have not reported for `silent` microseconds; returns how many."""
        ...

    async def forget_members(self, unseen: int, limit: int) -> int:
        """Deletes some members of broadcasting groups not seen for `unseen` microseconds; returns how many."""
        ...


class ReadinessStore(Protocol):
    """Whether the database can be used."""

    @property
    def database_away(self) -> bool:
        """Whether the last work that needed the database failed for its sake."""
        ...

    async def look_at_tables(self) -> None:
        """Reads the version of the tables.

        Raises:
            Exception: the database cannot be reached, or has no tables.
        """
        ...


class ClockStore(Protocol):
    """The database's clock."""

    async def synchronise_clock(self) -> None:
        """Reads the database's time."""
        ...
