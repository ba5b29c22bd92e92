"""What the services hand over to the storage, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.domain.dead_letter import Origin
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup
    from broker.domain.message import LogMessage, Message
    from broker.domain.topic import Topic
    from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
    from broker.errors import BrokerError

Queue: TypeAlias = tuple[int, int]
"""Topic id and queue id."""

Place: TypeAlias = tuple[int, ...]
"""Where a message is, as an op record tells it.

In the log: queue id and offset. Else SCHEDULED, the time that it waits for, and the id of its topic; or RECALLED, the
time of that, the id of its topic, and the time that it waited for.
"""

SCHEDULED, RECALLED = 0, -1


@dataclass(slots=True)
class Half:
    """A half message on its way into storage."""

    topic_id: int
    queue_no: int | None
    message: Message


@dataclass(slots=True)
class PrepareWork:
    """The half messages of one transaction, or some more of them; the delay in microseconds.

    Attributes:
        checked: whether the producer group is asked about it; not where it is of a sink.
    """

    transaction_id: bytes
    producer_group_id: int
    halves: list[Half]
    first_position: int = 0
    first_check_delay: int = 0
    checked: bool = True

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return sum([half.message.size for half in self.halves])


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a sink, as a query numbers it; `take_over`: the sink may have been another query's."""

    sink: str
    query_id: str
    number: int
    take_over: bool = False


@dataclass(slots=True)
class SinkWork:
    """Half messages that an attempt of a task writes in an epoch."""

    epoch: Epoch
    attempt_id: bytes
    halves: PrepareWork


@dataclass(slots=True)
class EpochCommitted:
    """What committing an epoch did.

    Attributes:
        already: it was committed before, so nothing was done.
        messages: how many were released.
        heads: where the queues end now that they went to.
    """

    already: bool
    messages: int = 0
    heads: dict[Queue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far a sink is; time in microseconds, both None before the first epoch; `waiting`: half messages."""

    name: str
    query_id: str
    committed_epoch: int | None
    committed_at: int | None
    waiting: int


@dataclass(slots=True)
class VerdictWork:
    """A verdict on one transaction."""

    transaction_id: bytes
    commit: bool
    source: VerdictSource
    reason: str = ""
    operator: str = ""


@dataclass(slots=True)
class TransactionOutcome:
    """Where a transaction stands after some work; `released` tells where its messages are, when committed."""

    transaction_id: bytes
    state: TransactionState
    released: Sequence[Place] = ()


@dataclass(slots=True)
class SendWork:
    """An ordinary message."""

    message_id: bytes
    topic_id: int
    queue_no: int | None
    message: Message

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.message.body)

    @property
    def order(self) -> tuple[int, str] | None:
        """What it has in common with those that keep their order; None: it has none."""
        group = self.message.message_group
        return None if group is None else (self.topic_id, group)


@dataclass(slots=True)
class Duplicate:
    """An ordinary message that was dropped, for another one owns its dedup_key; `place` None: no longer known."""

    transaction_id: bytes
    position: int
    place: Place | None


@dataclass(slots=True)
class RecallWork:
    """A message to be taken back before its time."""

    transaction_id: bytes
    position: int


@dataclass(slots=True)
class Moved:
    """Scheduled messages that went into the log.

    Attributes:
        count: how many.
        dropped: how many were dropped, for their topic was deleted.
        heads: where the queues end now that they went to.
        next_due: when the next one is due; None: none waits.
        busy: another broker is at it.
    """

    count: int = 0
    dropped: int = 0
    heads: dict[Queue, int] = field(default_factory=dict)
    next_due: int | None = None
    busy: bool = False


@dataclass(slots=True)
class FoundMessage:
    """A message by its identity; times in microseconds.

    Attributes:
        state: where its transaction stands.
        message: as the log holds it.
        waiting: while it waits for a verdict or for its time.
        place: where its op record says that it is.
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
        after: queue number and offset to begin at.
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

    def covers(self, stored_at: int) -> bool:
        """Whether a message that became visible at this time is wanted."""
        return (self.since is None or stored_at >= self.since) and (self.until is None or stored_at < self.until)


@dataclass(slots=True)
class FoundPage:
    """Messages, and the queue number and offset at which the next page begins; None: this was the last."""

    messages: list[LogMessage]
    following: tuple[int, int] | None = None


@dataclass(slots=True)
class ClaimedCheck:
    """A check that is counted and must now go out on a stream, or be given back."""

    transaction_id: bytes
    producer_group_id: int
    check_number: int
    max_checks: int
    prepared_at: int
    halves: list[Message]
    sent_at: int = 0


@dataclass(slots=True)
class CheckAnswer:
    """What a producer answers to a check."""

    client_id: str
    verdict: CheckVerdict
    reason: str = ""


@dataclass(slots=True)
class CheckEntry:
    """One line of the check history; times in microseconds."""

    check_number: int
    sent_at: int
    broker_id: str
    client_id: str
    answered_at: int | None
    verdict: CheckVerdict | None
    reason: str | None


@dataclass(slots=True)
class OperatorEntry:
    """Something an operator did; time in microseconds."""

    action: str
    operator: str
    reason: str
    acted_at: int


@dataclass(slots=True)
class OpEntry:
    """The recorded verdict; time in microseconds."""

    state: TransactionState
    source: VerdictSource
    decided_at: int
    reason: str | None
    released: Sequence[Place]


@dataclass(slots=True)
class TransactionSummary:
    """A transaction in short; times in microseconds."""

    transaction_id: bytes
    state: TransactionState
    producer_group: str
    half_count: int
    check_count: int
    prepared_at: int
    next_check_at: int | None
    parked_at: int | None


@dataclass(slots=True)
class TransactionDetail:
    """All that is known of a transaction; `parked_at` is when it last was, also if it is no more (microseconds)."""

    summary: TransactionSummary
    halves: list[Message] = field(default_factory=list)
    checks: list[CheckEntry] = field(default_factory=list)
    op: OpEntry | None = None
    operator_actions: list[OperatorEntry] = field(default_factory=list)
    parked_at: int | None = None


@dataclass(slots=True)
class TransactionFilter:
    """Which transactions to list; `prepared_before` in microseconds, `after` continues a listing."""

    state: TransactionState | None = None
    producer_group: str | None = None
    topic_id: int | None = None
    prepared_before: int | None = None
    after: tuple[int, bytes] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class GroupNews:
    """What consumers of a group should know: `epoch` grows with every change; `due`: a lease can be taken."""

    epoch: int
    due: bool


@dataclass(frozen=True, slots=True)
class JoinWork:
    """A consumer joining a group on some topics; `filters` by topic id, `start_at` as of a group."""

    group: ConsumerGroup
    topics: Sequence[Topic]
    client_id: str
    filters: Mapping[int, Filter]
    replace_filters: bool = False
    start_at: int | None = None


@dataclass(slots=True)
class ClaimWork:
    """A consumer's wish for messages: up to `limit` of them and about `max_bytes`, for `lease_time` microseconds.

    Attributes:
        abandoned: nobody waits for them any more.
        one_by_one: of a message group, the next message only when the one before is settled.
    """

    group: ConsumerGroup
    topics: Sequence[Topic]
    owner: str
    limit: int
    max_bytes: int
    lease_time: int
    abandoned: bool = False
    one_by_one: bool = False


@dataclass(slots=True)
class Delivered:
    """Messages handed out under one lease; `ordered`: of one message group, where only the first counts as tried."""

    lease_id: int
    token: int
    attempt: int
    expires_at: int
    last_error: str | None
    messages: list[LogMessage]
    ordered: bool = False

    def handed_out(self) -> HandedOut:
        """What to remember of it without the messages; of one message group the first stands for all."""
        given = self.messages[:1] if self.ordered else self.messages
        return HandedOut(self.lease_id, self.token, [message.offset for message in given])


@dataclass(slots=True)
class HandedOut:
    """Messages of a lease, by their offsets."""

    lease_id: int
    token: int
    offsets: list[int]


@dataclass(slots=True)
class Claimed:
    """What a consumer got. `more`: there may be more at once, which it had no room for or another broker held.

    Attributes:
        unjudged: there may be more once its group's filter has judged what comes next.
    """

    parts: list[Delivered]
    more: bool = False
    unjudged: bool = False

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum([len(message.body) for part in self.parts for message in part.messages])

    def hand_over(self) -> list[Delivered]:
        """The messages, which are not kept here any more: they may be large, and wait for a slow consumer."""
        parts, self.parts = self.parts, []
        return parts


@dataclass(slots=True)
class Receipt:
    """A receipt handle taken apart."""

    lease_id: int
    token: int
    offset: int


@dataclass(slots=True)
class AckWork:
    """Messages of one lease that were handled, by their offsets."""

    lease_id: int
    token: int
    offsets: list[int]


@dataclass(slots=True)
class AckOutcome:
    """What became of the acks of one lease: those that were refused, by offset; the rest as in ReceiptOutcome."""

    refused: dict[int, BrokerError] = field(default_factory=dict)
    held_until: int = 0
    frees: tuple[int, ...] = ()


@dataclass(slots=True)
class NackWork:
    """A message that is given back; `delay` in microseconds, None for the group's retry delays.

    Attributes:
        untried: the delivery does not count.
        given_up: it goes to the dead letters now, however often it was tried.
    """

    receipt: Receipt
    delay: int | None = None
    reason: str = ""
    untried: bool = False
    given_up: bool = False


@dataclass(slots=True)
class ExtendWork:
    """A lease to keep for `lease_time` microseconds from now."""

    receipt: Receipt
    lease_time: int


@dataclass(slots=True)
class HoldWork:
    """A message to keep for `time` microseconds from now, under a lease of its own; then it is delivered again."""

    receipt: Receipt
    time: int


@dataclass(slots=True)
class ReceiptOutcome:
    """What became of a receipt: the new end of the lease, or the place in the dead letter topic.

    `receipt` is the one that counts from now on, where that is another one.

    `held_until` is when the lease it was found under ends: until then nobody else can have taken the message. `frees`
    names groups whose consumers can take something now.
    """

    expires_at: int | None = None
    dead_letter: tuple[int, int] | None = None
    dead_letter_message_id: str = ""
    held_until: int = 0
    frees: tuple[int, ...] = ()
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterSearch:
    """Which dead letters of a group: from an offset on, those that a filter wants, or at some offsets.

    Attributes:
        until: where a redrive stops, because nothing behind was judged.
    """

    group: ConsumerGroup
    first: int = 0
    wanted: Filter | None = None
    offsets: frozenset[int] | None = None
    limit: int = 100
    max_bytes: int = 4 * 1024 * 1024
    until: int | None = None


@dataclass(slots=True)
class FoundDeadLetter:
    """A dead letter; `redriven_at` in microseconds, when it was delivered to the group again."""

    message: LogMessage
    origin: Origin | None
    redriven_at: int | None


@dataclass(slots=True)
class DeadLetterPage:
    """Some dead letters, and the offset to go on from; None at the end."""

    entries: list[FoundDeadLetter]
    following: int | None


@dataclass(slots=True)
class Redriven:
    """How far a redrive is: see RedriveDeadLettersResponse; `following` is where to go on, None at the end."""

    examined: int = 0
    redriven: int = 0
    republished: int = 0
    left: int = 0
    total: int = 0
    following: int | None = None


Settling: TypeAlias = "AckWork | NackWork | ExtendWork | HoldWork"
"""What is done with receipts."""
