"""What the database holds at a time, for metrics: the port, and its values. Times are microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class PendingOfGroup:
    """Transactions of a producer group without a verdict.

    Attributes:
        pending: those that are checked, or soon will be.
        parked: those that an operator has to decide.
        since: when the oldest pending one was prepared, if ids begin with the time.
        due_since: since when a check is due that no producer got; None: none is.
        has_producer: whether a producer of the group holds a check stream to any broker; None: that is not known.
    """

    producer_group: str
    pending: int = 0
    parked: int = 0
    since: int | None = None
    due_since: int | None = None
    has_producer: bool | None = None


@dataclass(slots=True)
class Lag:
    """What a consumer group has not handled of a topic, in messages.

    Attributes:
        ready: never delivered so far.
        retrying: delivered before, and waiting for the next delivery.
        in_flight: under leases of consumers.
        since: when the first one became visible that is not handled; None: it was not looked at.
        ready_since: when the first one became visible that was never delivered; likewise.
    """

    topic: str
    consumer_group: str
    ready: int = 0
    retrying: int = 0
    in_flight: int = 0
    since: int | None = None
    ready_since: int | None = None

    @property
    def messages(self) -> int:
        """All of them."""
        return self.ready + self.retrying + self.in_flight


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Messages of a group's dead letter topic: all that ever came, and those that are kept."""

    consumer_group: str
    written: int
    kept: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers without names.

    Attributes:
        topics, consumer_groups: that exist; members of broadcasting groups are not counted.
        sink_transactions: transactions of epochs that are not committed.
        sink_since: when the oldest of these was prepared.
        scheduled: messages with a delivery time.
        scheduled_due: the earliest of these times.
        submissions: rows that wait to be sent.
        refused_submissions: rows that could not be.
        oldest_op: when the oldest recorded verdict was given.
    """

    topics: int = 0
    consumer_groups: int = 0
    sink_transactions: int = 0
    sink_since: int | None = None
    scheduled: int = 0
    scheduled_due: int | None = None
    submissions: int = 0
    refused_submissions: int = 0
    oldest_op: int | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """What the database holds at a time."""

    taken_at: int
    totals: Totals = field(default_factory=Totals)
    pending: Sequence[PendingOfGroup] = ()
    lags: Sequence[Lag] = ()
    dead_letters: Sequence[DeadLetters] = ()


@dataclass(slots=True)
class AgeBucket:
    """Transactions without a verdict whose age is in a range; `up_to` in microseconds, None: any greater age."""

    up_to: int | None
    prepared: int = 0
    parked: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """What there is in all; see GetOverviewResponse of the protocol.

    Attributes:
        dead_letters_by_group: of groups that have some, those with most first.
        dead_letter_groups: how many groups these are, whether they are listed or not.
        oldest_op: when the oldest recorded verdict was given.
        retention_behind: for how long that one is past its retention.
        age: how long ago it was counted; 0: for this call.
    """

    time: int
    database: str
    schema_version: str
    pending: Sequence[PendingOfGroup]
    ages: Sequence[AgeBucket]
    topics: int
    consumer_groups: int
    scheduled: int
    released: int
    stored: int
    stored_bytes: int
    dead_letters: int
    dead_letters_by_group: Sequence[DeadLetters] = ()
    dead_letter_groups: int = 0
    oldest_op: int | None = None
    retention_behind: int = 0
    age: int = 0


class OverviewStore(Protocol):
    """What there is in all."""

    async def overview(self) -> Overview:
        """Counts it, in bounded statements."""
        ...


class SampleStore(Protocol):
    """Where samples are taken."""

    async def sample(self) -> StoredState:
        """Looks at what there is, in bounded statements."""
        ...

    async def producer_groups(self) -> dict[int, str]:
        """The names of all producer groups by their numbers."""
        ...


class SampleTaker(Protocol):
    """What samples are for."""

    @property
    def lacks_names(self) -> bool:
        """Whether it knows producer groups by number alone."""
        ...

    def name_groups(self, names: dict[int, str]) -> None:
        """Takes the names of producer groups by their numbers."""
        ...

    def take_sample(self, state: StoredState | None, lasts: float = 0.0) -> None:
        """Takes a sample, which is not told any more after so many seconds; None: another broker takes them."""
        ...
