"""Consumer groups, their progress and their dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.domain.dead_letter import Origin
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup, GroupSettings
    from broker.domain.message import LogMessage
    from broker.domain.topic import QueueState, Topic, TopicSettings


@dataclass(frozen=True, slots=True)
class DeadLetterSearch:
    """Selects dead letters of a group: from an offset on, those that match a filter, or at some offsets.

    Attributes:
        until: where a step of a redrive stops, because later ones were not evaluated.
        end: only those below this offset; None: that are there.
        topic_id: only those of this topic, as another one may have its name by now; None: of that which has it.
        may_republish: the topics, by name, that copies may be appended to; None: all.
    """

    group: ConsumerGroup
    first: int = 0
    wanted: Filter | None = None
    offsets: frozenset[int] | None = None
    limit: int = 100
    max_bytes: int = 4 * 1024 * 1024
    until: int | None = None
    end: int | None = None
    topic_id: int | None = None
    may_republish: Callable[[str], bool] | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class FoundDeadLetter:
    """A dead letter; `redriven_at` in microseconds, when it was delivered to the group again."""

    message: LogMessage
    origin: Origin | None
    redriven_at: int | None


@dataclass(slots=True)
class DeadLetterPage:
    """Some dead letters, and the offset of their topic to continue from; None at the end."""

    entries: list[FoundDeadLetter]
    following: int | None
    topic_id: int


@dataclass(slots=True)
class Redriven:
    """Progress of a redrive: see RedriveDeadLettersResponse.

    Attributes:
        following: where to continue; None: this was the last step.
        end: the end of the topic when the redrive began.
        topic_id: the topic.
    """

    examined: int = 0
    redriven: int = 0
    republished: int = 0
    left: int = 0
    total: int = 0
    following: int | None = None
    end: int = 0
    topic_id: int | None = None


@dataclass(frozen=True, slots=True)
class Purge:
    """Selects a group's oldest dead letters.

    `end`: only those below this offset; `before`: in microseconds; `topic_id`: only those in this topic, as another one
    may have its name by now.
    """

    group: ConsumerGroup
    end: int | None = None
    before: int | None = None
    dry_run: bool = False
    topic_id: int | None = None


@dataclass(slots=True)
class Purged:
    """A step of a purge: how many were deleted, or would be, below which offset of a topic; whether none are left."""

    deleted: int
    end: int
    done: bool
    topic_id: int


@dataclass(slots=True)
class GroupLag:
    """Lag of a group in a topic, of a broadcasting group over all members; see GroupLag of the protocol.

    Attributes:
        waiting_since: when the first message that was not handled became visible (microseconds).
        dead_letters: that are kept of the group, from all topics.
    """

    group: ConsumerGroup
    topic: str
    queues: int = 0
    lag: int = 0
    waiting_since: int | None = None
    in_flight: int = 0
    members: int = 0
    dead_letters: int = 0


class GroupNames(Protocol):
    """Look-up of consumer groups by name."""

    async def group_names(self) -> dict[int, str]:
        """The names of all consumer groups by their numbers."""
        ...

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        ...

    async def create_group(
        self, name: str, settings: GroupSettings, dead_letters: TopicSettings, *, most: int | None = None
    ) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic; AlreadyExists when the name is taken.

        Refused where there are `most` groups.
        """
        ...


class GroupStore(Protocol):
    """Changes of groups by operators and consumers."""

    async def update_group(self, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
        """Changes settings, by the names of GroupSettings."""
        ...

    async def pause_group(self, group: ConsumerGroup, *, paused: bool, reason: str) -> ConsumerGroup:
        """Pauses or resumes delivery."""
        ...

    async def set_filter(self, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
        """Sets or removes the group's filter of a topic."""
        ...

    async def filters_of(self, group: ConsumerGroup) -> list[tuple[str, Filter]]:
        """The filters of a group, by the name of the topic."""
        ...

    async def filters_of_groups(self, groups: Sequence[ConsumerGroup]) -> list[list[tuple[str, Filter]]]:
        """The filters of several groups, each by the name of the topic."""
        ...

    async def commit_offsets(self, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Records the progress of a group that reads by offset, by queue id."""
        ...

    async def seek_group(
        self, group: ConsumerGroup, queue_ids: Sequence[int], *, to: int | None, offset: int | None
    ) -> None:
        """Moves a group to another position in some queues, and revokes its leases there."""
        ...

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        """Consumer groups by name."""
        ...

    async def delete_group(self, group: ConsumerGroup) -> None:
        """Deletes a consumer group with its progress and leases.

        Raises:
            NotFound: it was deleted meanwhile.
            Moved: it has left for another cell meanwhile.
        """
        ...

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        """Progress of a group in every queue it joined."""
        ...

    async def group_lags(self, groups: Sequence[ConsumerGroup], topic: Topic | None) -> tuple[list[GroupLag], int]:
        """The lag of some groups by topic, and how many of these groups it is of: as many as fit into a page."""
        ...


class DeadLetterStore(Protocol):
    """Dead letters."""

    async def find_dead_letters(self, search: DeadLetterSearch) -> DeadLetterPage:
        """Dead letters of a group, oldest first."""
        ...

    async def redrive(self, search: DeadLetterSearch, *, republish: bool) -> Redriven:
        """Delivers some dead letters to their group again."""
        ...

    async def purge_dead_letters(self, wanted: Purge) -> Purged:
        """Deletes some of a group's oldest dead letters."""
        ...
