"""Transactions: the storage's port, and its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.message import Message
    from broker.domain.place import Place
    from broker.domain.transaction import CheckVerdict, TransactionState, VerdictSource
    from broker.errors import BrokerError


@dataclass(slots=True)
class Half:
    """A half message to store."""

    topic_id: int
    queue_no: int | None
    message: Message


@dataclass(slots=True)
class PrepareWork:
    """The half messages of one transaction, or further ones; the delay in microseconds.

    Attributes:
        checked: whether it is checked; not if it belongs to a sink.
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


@dataclass(slots=True)
class VerdictWork:
    """A verdict on one transaction.

    Attributes:
        transaction_id: identity of the transaction.
        commit: False rolls back.
        source: who decides.
        reason: recorded with the verdict.
        operator: the operator's name; empty if it is nobody's.
        traceparent: the trace context of the verdict at whoever gives it.
        groups: the producer groups that whoever decides may decide for; for others it is as if there were no such
            transaction. None: all.
        topics: the topics that all of its messages have to be on, likewise. None: any.
    """

    transaction_id: bytes
    commit: bool
    source: VerdictSource
    reason: str = ""
    operator: str = ""
    groups: frozenset[int] | None = None
    topics: frozenset[int] | None = None
    traceparent: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a verdict decided: the transaction's producer group, its half messages, and microseconds since it began."""

    group_id: int
    halves: int
    after: int


@dataclass(slots=True)
class TransactionOutcome:
    """State of a transaction after some work; `released` has the places of its messages, when committed.

    Attributes:
        decided: set where this work has decided it; None where it was decided before, or still is not.
    """

    transaction_id: bytes
    state: TransactionState
    released: Sequence[Place] = ()
    decided: Decided | None = field(default=None, compare=False)


@dataclass(slots=True)
class OpEntry:
    """The recorded verdict; time in microseconds."""

    state: TransactionState
    source: VerdictSource
    decided_at: int
    reason: str | None
    released: Sequence[Place]


@dataclass(slots=True)
class OperatorEntry:
    """An operator's action; time in microseconds."""

    action: str
    operator: str
    reason: str
    acted_at: int


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
class TransactionSummary:
    """A summary of a transaction; times in microseconds."""

    transaction_id: bytes
    state: TransactionState
    producer_group: str
    half_count: int
    check_count: int
    prepared_at: int
    next_check_at: int | None
    parked_at: int | None
    decided_at: int | None = None
    source: VerdictSource | None = None
    reason: str = ""


@dataclass(slots=True)
class TransactionDetail:
    """All that is known of a transaction; `parked_at` is the last parking, also if it was undone (microseconds)."""

    summary: TransactionSummary
    halves: list[Message] = field(default_factory=list)
    checks: list[CheckEntry] = field(default_factory=list)
    op: OpEntry | None = None
    operator_actions: list[OperatorEntry] = field(default_factory=list)
    parked_at: int | None = None


@dataclass(slots=True)
class TransactionFilter:
    """Which transactions to list; `prepared_before` in microseconds, `after` continues a listing behind an id.

    `groups`: only those of these producer groups; None: of all.
    """

    state: TransactionState | None = None
    producer_group: str | None = None
    topic_id: int | None = None
    prepared_before: int | None = None
    after: bytes = b""
    limit: int = 100
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class TransactionPage:
    """Some transactions without a verdict, in the order of their ids, and the id behind which others follow, if any."""

    entries: list[TransactionSummary]
    following: bytes | None


@dataclass(slots=True)
class DecidedSearch:
    """Which transactions with a verdict to list; times in microseconds.

    Attributes:
        state: COMMITTED or ROLLED_BACK; None: both.
        sources: who decided them.
        since, until: when they were decided; `until` is exclusive.
        after: time of the verdict and identity of the last one of the page before.
        groups: only those of these producer groups; None: of all.
    """

    state: TransactionState | None = None
    producer_group: str | None = None
    sources: frozenset[VerdictSource] = frozenset()
    since: int | None = None
    until: int | None = None
    prepared_before: int | None = None
    after: tuple[int, bytes] | None = None
    limit: int = 100
    groups: frozenset[int] | None = None


@dataclass(slots=True)
class DecidedPage:
    """Some transactions with a verdict, the last decided first, and where the next page begins; None at the end."""

    entries: list[TransactionSummary]
    following: tuple[int, bytes] | None


class TransactionStore(Protocol):
    """Preparing and deciding transactions."""

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        """Stores half messages; one outcome per item."""
        ...

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        """Records verdicts and releases or drops the half messages; one outcome per item."""
        ...


class TransactionDetails(Protocol):
    """One transaction with all that is recorded of it."""

    async def transaction(self, transaction_id: bytes) -> TransactionDetail | None:
        """All that is known of a transaction."""
        ...


class TransactionRecords(TransactionDetails, Protocol):
    """Administration of transactions."""

    async def list_transactions(self, wanted: TransactionFilter) -> TransactionPage:
        """Transactions without a verdict, in the order of their ids, which begin with the time."""
        ...

    async def list_decided(self, search: DecidedSearch) -> DecidedPage:
        """Transactions with a verdict, the last decided first."""
        ...

    async def check_again(
        self, transaction_id: bytes, policy: CheckPolicy, operator: str, reason: str
    ) -> TransactionOutcome:
        """Makes a prepared or parked transaction due for checks again."""
        ...


class ProducerGroups(Protocol):
    """The names of producer groups."""

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group; created if new."""
        ...

    async def find_producer_group(self, name: str) -> int | None:
        """The number of a producer group; None if there is none."""
        ...

    async def producer_groups(self) -> dict[int, str]:
        """The names of all producer groups by their numbers."""
        ...
