"""Check-backs: the storage's port, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.message import Message
    from broker.domain.transaction import CheckVerdict


@dataclass(slots=True)
class ClaimedCheck:
    """A check that is counted and must now be sent on a stream, or undone."""

    transaction_id: bytes
    producer_group_id: int
    check_number: int
    max_checks: int
    prepared_at: int
    halves: list[Message]
    sent_at: int = 0


@dataclass(slots=True)
class CheckAnswer:
    """What a producer answers to a check.

    Attributes:
        client_id: the producer's name.
        verdict: what it answers.
        reason: recorded in the history.
        groups: the producer groups whose transactions it may answer for; None: all.
        topics: the topics that all messages of the transaction have to be on; None: any.
        traceparent: the trace context of the check at the producer.
    """

    client_id: str
    verdict: CheckVerdict
    reason: str = ""
    groups: frozenset[int] | None = None
    topics: frozenset[int] | None = None
    traceparent: str = ""


class Parked(NamedTuple):
    """A transaction that was parked.

    Attributes:
        transaction_id: its identity.
        producer_group: whose it is.
        client_id: the producer that got its last check; empty: none is known.
    """

    transaction_id: bytes
    producer_group: str
    client_id: str


class CheckStreams(Protocol):
    """Producers with a check stream to this broker.

    Attributes:
        on_open: called when one comes.
    """

    on_open: Callable[[], None]

    def group_ids(self) -> list[int]:
        """Groups with a producer at this broker."""
        ...

    def is_silent(self, group_id: int) -> bool:
        """Whether all local producers of a group leave checks unanswered."""
        ...

    async def send(self, check: ClaimedCheck) -> str | None:
        """Sends a check to the group's next producer; returns its client id, None if none could be reached."""
        ...


class CheckStore(Protocol):
    """Due checks and their outcomes."""

    async def claim_checks(
        self, group_ids: Sequence[int], policy: CheckPolicy, limit: int, due_by: int | None = None
    ) -> list[ClaimedCheck]:
        """Counts checks that are due in these groups (by a time, or now) and returns them to be sent."""
        ...

    async def record_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """Records the producer that got a check."""
        ...

    async def return_check(self, check: ClaimedCheck) -> None:
        """Undoes the count of a check that could not be sent."""
        ...

    async def park_exhausted(self, limit: int) -> list[Parked]:
        """Parks transactions whose last check went unanswered."""
        ...

    async def sweep_decided_halves(self, after: bytes = b"") -> tuple[int, bytes]:
        """Removes half messages that have an op record (a late repetition of Prepare), among the next ones.

        Args:
            after: transaction to continue behind.

        Returns:
            The number of transactions, and where to continue (empty at the end).
        """
        ...

    async def overdue(self, grace: int) -> list[tuple[str, int]]:
        """Producer groups whose oldest check is overdue by more than `grace` microseconds, and by how much."""
        ...


class CheckHistory(Protocol):
    """Answers of producers."""

    async def record_answer(self, transaction_id: bytes, check_number: int, answer: CheckAnswer) -> None:
        """Records a producer's answer in the check history."""
        ...
