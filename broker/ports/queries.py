"""Finding messages and their events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.domain.filters import Filter
    from broker.domain.message import LogMessage, Message
    from broker.domain.place import Place
    from broker.domain.topic import Topic
    from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource


@dataclass(slots=True)
class FoundMessage:
    """A message by its identity; times in microseconds.

    Attributes:
        state: of its transaction.
        message: as stored in the log.
        waiting: while it has no verdict or is scheduled.
        place: its place by its op record.
    """

    state: TransactionState
    message: LogMessage | None = None
    waiting: Message | None = None
    scheduled_at: int | None = None
    recalled_at: int | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class MessageSearch:
    """Messages to find: by key where there is one, that became visible in [since, until).

    Attributes:
        queue_no: the only queue; None: all queues.
        wanted: the filter that they match; None: all messages.
        after: queue number and offset to start at.
        limit: most messages of a page.
        max_bytes: of the bodies of a page, if it has more than one.
    """

    topic: Topic
    key: str = ""
    since: int | None = None
    until: int | None = None
    after: tuple[int, int] = (0, 0)
    limit: int = 100
    max_bytes: int = 8 * 1024 * 1024
    queue_no: int | None = None
    wanted: Filter | None = None

    def queues(self) -> Iterator[tuple[int, int, int]]:
        """The queues to look at, in order: number, the database's number, and the first offset."""
        chosen = range(len(self.topic.queue_ids)) if self.queue_no is None else [self.queue_no]
        for number in chosen:
            if number >= self.after[0]:
                yield number, self.topic.queue_ids[number], self.after[1] if number == self.after[0] else 0

    def covers(self, stored_at: int) -> bool:
        """Whether a message that became visible at this time matches."""
        return (self.since is None or stored_at >= self.since) and (self.until is None or stored_at < self.until)


@dataclass(slots=True)
class FoundPage:
    """Messages, and the queue number and offset at which the next page begins; None: this was the last."""

    messages: list[LogMessage]
    following: tuple[int, int] | None = None


class TimelineKind(IntEnum):
    """As TimelineEventType of the protocol."""

    PREPARED = 1
    CHECK_SENT = 2
    CHECK_ANSWERED = 3
    PARKED = 4
    OPERATOR_ACTED = 5
    COMMITTED = 6
    ROLLED_BACK = 7
    SCHEDULED = 8
    RECALLED = 9
    RELEASED = 10
    DELIVERED = 11
    ACKED = 12
    NACKED = 13
    DEAD_LETTERED = 14
    REDRIVEN = 15


@dataclass(slots=True)
class TimelineEvent:
    """An event of a message; time in microseconds.

    Attributes:
        group: the producer group or consumer group.
        client_id: the producer, consumer or operator.
        number: of the check, or of the delivery.
        place: the message's position, or its delivery time.
    """

    kind: TimelineKind
    happened_at: int
    group: str = ""
    client_id: str = ""
    number: int = 0
    verdict: CheckVerdict | None = None
    source: VerdictSource | None = None
    place: Place | None = None
    reason: str = ""


class MessageQueryStore(Protocol):
    """Finding messages."""

    async def find_message(self, transaction_id: bytes, position: int) -> FoundMessage | None:
        """A message by its identity, in any state."""
        ...

    async def find_messages(self, search: MessageSearch) -> FoundPage:
        """Messages of a topic by key, by time, by queue and offset, or by several of these."""
        ...

    async def deliveries_of(self, queue_id: int, offset: int) -> list[TimelineEvent]:
        """The delivery events of a message, in order."""
        ...
