"""Messages, as administration returns them: state, history, and dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.encoding import from_wire
from client_core.message import LogPosition
from client_core.results import read_answer, read_source, read_state
from client_core.stored import StoredMessage
from client_core.times import read_time
from halfmq.v1 import query_pb2

if TYPE_CHECKING:
    from datetime import datetime

    from client_core.message import Message
    from client_core.states import LocalTransactionState, TransactionState, VerdictSource
    from halfmq.v1 import admin_pb2

__all__ = ["DeadLetter", "MessageInfo", "PurgeProgress", "RedriveProgress", "TimelineEvent", "TimelineEventType"]


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """State of a message.

    Attributes:
        state: State of its transaction; an ordinary message is COMMITTED.
        message: The message in the log; None while it is not in the log.
        waiting: The message while it has no verdict or is scheduled; None otherwise.
        scheduled_at: When it will be delivered, while it is scheduled (UTC); None otherwise.
        recalled_at: When it was recalled before its delivery time (database time, UTC); None unless it was.
    """

    state: TransactionState
    message: StoredMessage | None
    waiting: Message | None
    scheduled_at: datetime | None
    recalled_at: datetime | None

    @classmethod
    def of(cls, found: query_pb2.GetMessageResponse) -> MessageInfo:
        """Reads the wire form."""
        return cls(
            state=read_state(found.state),
            message=StoredMessage(found.message) if found.HasField("message") else None,
            waiting=from_wire(found.waiting) if found.HasField("waiting") else None,
            scheduled_at=read_time(found.scheduled_at),
            recalled_at=read_time(found.recalled_at),
        )


class TimelineEventType(IntEnum):
    """Types of events."""

    UNSPECIFIED = query_pb2.TIMELINE_EVENT_TYPE_UNSPECIFIED
    """Something that this SDK does not know yet."""
    PREPARED = query_pb2.TIMELINE_EVENT_TYPE_PREPARED
    """The half message was stored."""
    CHECK_SENT = query_pb2.TIMELINE_EVENT_TYPE_CHECK_SENT
    """A check was sent to a producer."""
    CHECK_ANSWERED = query_pb2.TIMELINE_EVENT_TYPE_CHECK_ANSWERED
    """The producer answered the check."""
    PARKED = query_pb2.TIMELINE_EVENT_TYPE_PARKED
    """All checks were used up."""
    OPERATOR_ACTED = query_pb2.TIMELINE_EVENT_TYPE_OPERATOR_ACTED
    """An operator resolved the transaction."""
    COMMITTED = query_pb2.TIMELINE_EVENT_TYPE_COMMITTED
    """The verdict: release."""
    ROLLED_BACK = query_pb2.TIMELINE_EVENT_TYPE_ROLLED_BACK
    """The verdict: drop."""
    SCHEDULED = query_pb2.TIMELINE_EVENT_TYPE_SCHEDULED
    """It waits for its delivery time."""
    RECALLED = query_pb2.TIMELINE_EVENT_TYPE_RECALLED
    """It was recalled before its delivery time."""
    RELEASED = query_pb2.TIMELINE_EVENT_TYPE_RELEASED
    """It became visible to consumers."""
    DELIVERED = query_pb2.TIMELINE_EVENT_TYPE_DELIVERED
    """A consumer got it."""
    ACKED = query_pb2.TIMELINE_EVENT_TYPE_ACKED
    """A consumer handled it."""
    NACKED = query_pb2.TIMELINE_EVENT_TYPE_NACKED
    """A consumer nacked it."""
    DEAD_LETTERED = query_pb2.TIMELINE_EVENT_TYPE_DEAD_LETTERED
    """It became a dead letter after its last attempt."""
    REDRIVEN = query_pb2.TIMELINE_EVENT_TYPE_REDRIVEN
    """It was redriven from the dead letters."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event of a message.

    Attributes:
        type: Type of the event.
        happened_at: When (database time, UTC).
        group: The producer group or consumer group.
        client_id: The producer, consumer or operator.
        number: Number of the check, or of the delivery.
        answer: What a producer answered to a check; None for other events.
        source: Source of the verdict.
        position: The message's position, for RELEASED and DEAD_LETTERED; its delivery time, for SCHEDULED.
        reason: Why, where a reason was given.
    """

    type: TimelineEventType
    happened_at: datetime | None
    group: str
    client_id: str
    number: int
    answer: LocalTransactionState | None
    source: VerdictSource
    position: LogPosition | None
    reason: str

    @classmethod
    def of(cls, event: query_pb2.TimelineEvent) -> TimelineEvent:
        """Reads the wire form."""
        return cls(
            type=_TYPES.get(event.type, TimelineEventType.UNSPECIFIED),
            happened_at=read_time(event.happened_at),
            group=event.group,
            client_id=event.client_id,
            number=event.number,
            answer=read_answer(event.verdict),
            source=read_source(event.source),
            position=LogPosition.of(event.position) if event.HasField("position") else None,
            reason=event.reason,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group could not handle.

    Attributes:
        message: The message in the dead letter topic.
        origin: Where it was delivered from.
        reason: Reason of the last failure.
        attempts: How often it was delivered.
        redriven_at: When it was delivered to the group again (database time, UTC); None unless it was.
    """

    message: StoredMessage
    origin: LogPosition
    reason: str
    attempts: int
    redriven_at: datetime | None

    @classmethod
    def of(cls, letter: admin_pb2.DeadLetter) -> DeadLetter:
        """Reads the wire form."""
        return cls(
            message=StoredMessage(letter.message),
            origin=LogPosition.of(letter.origin),
            reason=letter.reason,
            attempts=letter.attempts,
            redriven_at=read_time(letter.redriven_at),
        )


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """Progress of a redrive.

    Attributes:
        examined: Dead letters examined so far.
        redriven: Of those, delivered again at their original offsets.
        republished: Of those, appended to their topic again.
        left: Of those, matched but skipped: redriven before, or their original is past retention.
        total: Dead letters to examine in total.
        done: Whether this is the last one.
    """

    examined: int
    redriven: int
    republished: int
    left: int
    total: int
    done: bool

    @classmethod
    def of(cls, progress: admin_pb2.RedriveDeadLettersResponse) -> RedriveProgress:
        """Reads the wire form."""
        return cls(
            progress.examined, progress.redriven, progress.republished, progress.left, progress.total, progress.done
        )


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """Progress of a purge.

    Attributes:
        deleted: Dead letters deleted so far; in a dry run: those that would be.
        done: Whether this is the last one.
        end_offset: They are below this offset: that of a dry run, as ``before_offset``, deletes what it has counted and
            nothing that came later. None: the broker does not tell it.
    """

    deleted: int
    done: bool
    end_offset: int | None = None

    @classmethod
    def of(cls, progress: admin_pb2.PurgeDeadLettersResponse) -> PurgeProgress:
        """Reads the wire form."""
        end = progress.end_offset if progress.HasField("end_offset") else None
        return cls(progress.deleted, progress.done, end)


_TYPES: dict[int, TimelineEventType] = {kind.value: kind for kind in TimelineEventType}
