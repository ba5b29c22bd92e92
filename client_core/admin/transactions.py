"""Transactions, as administration lists and resolves them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.admin.access import AsyncAccess
from client_core.arguments import check_kind, check_text
from client_core.connection import text_of_reason
from client_core.ids import plausible_id
from client_core.results import (
    TransactionInfo,
    TransactionResult,
    read_source,
    read_state,
    transaction_info,
    transaction_result,
)
from client_core.states import TransactionState, VerdictSource
from client_core.times import as_duration, as_timestamp, read_time
from halfmq.v1 import admin_pb2 as pb
from halfmq.v1 import transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime

    from client_core.times import Span

__all__ = ["AsyncTransactions", "Resolution", "ResolveProgress", "TransactionSummary"]

_PAGE = 1000
_GROUP, _TOPIC = "is the name of a producer group", "is the name of a topic"


class Resolution(IntEnum):
    """An operator's decision on a transaction."""

    COMMIT = pb.RESOLUTION_COMMIT
    """Release its messages."""
    ROLLBACK = pb.RESOLUTION_ROLLBACK
    """Drop its messages."""
    CHECK_AGAIN = pb.RESOLUTION_CHECK_AGAIN
    """Send checks to the producers again, with a fresh count."""


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """Summary of a transaction.

    Attributes:
        transaction_id: Identity of the transaction.
        state: Its state.
        producer_group: Group that gets its checks.
        messages: Number of its messages.
        check_count: Checks sent so far.
        prepared_at: When it was prepared (database time, UTC).
        next_check_at: When the next check is due; None when none is.
        parked_at: When it was parked; None unless it is.
        decided_at: When it was decided; None unless it is.
        source: Who decided it.
        reason: Why it was decided so, where a reason was given.
    """

    transaction_id: str
    state: TransactionState
    producer_group: str
    messages: int
    check_count: int
    prepared_at: datetime | None
    next_check_at: datetime | None
    parked_at: datetime | None
    decided_at: datetime | None
    source: VerdictSource
    reason: str

    @classmethod
    def of(cls, summary: pb.TransactionSummary) -> TransactionSummary:
        """Reads the wire form."""
        return cls(
            transaction_id=summary.transaction_id,
            state=read_state(summary.state),
            producer_group=summary.producer_group,
            messages=summary.half_count,
            check_count=summary.check_count,
            prepared_at=read_time(summary.prepared_at),
            next_check_at=read_time(summary.next_check_at),
            parked_at=read_time(summary.parked_at),
            decided_at=read_time(summary.decided_at),
            source=read_source(summary.source),
            reason=summary.reason,
        )


@dataclass(frozen=True, slots=True)
class ResolveProgress:
    """Progress of resolving transactions.

    Attributes:
        matched: Transactions that matched so far.
        resolved: Of those, resolved.
        left: Of those, left as they are: decided by others in the meantime.
        as_of: Database time at the beginning (UTC).
        examples: In the first one: some that matched.
        done: Whether this is the last one.
    """

    matched: int
    resolved: int
    left: int
    as_of: datetime | None
    examples: tuple[TransactionSummary, ...]
    done: bool

    @classmethod
    def of(cls, progress: pb.ResolveTransactionsResponse) -> ResolveProgress:
        """Reads the wire form."""
        return cls(
            matched=progress.matched,
            resolved=progress.resolved,
            left=progress.left,
            as_of=read_time(progress.as_of),
            examples=tuple(TransactionSummary.of(each) for each in progress.examples),
            done=progress.done,
        )


class AsyncTransactions(AsyncAccess):
    """The part of AsyncAdmin that is about transactions."""

    def list_transactions(
        self,
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        topic: str | None = None,
        older_than: Span | None = None,
    ) -> AsyncGenerator[TransactionSummary, None]:
        """Iterates over transactions without a verdict, in the order of their ids, which begin with the time.

        Args:
            state: Only PREPARED or PARKED ones; None: both.
            producer_group: Only those of this producer group.
            topic: Only those with a message for this topic.
            older_than: Only those prepared at least this long ago, in seconds or as a timedelta.
        """
        request = pb.ListTransactionsRequest(page_size=_PAGE)
        _fill(request, state, producer_group, topic, older_than)
        return self._summaries(request)

    def list_decided_transactions(
        self,
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        source: VerdictSource | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncGenerator[TransactionSummary, None]:
        """Iterates over transactions with a verdict, the last decided first.

        Args:
            state: Only COMMITTED or ROLLED_BACK ones; None: both.
            producer_group: Only those of this producer group.
            source: Only those with a verdict from this source; None: from a producer, a check or an operator.
            since: Only those decided at this time or later; with its time zone.
            until: Only those decided before this time; with its time zone.
        """
        request = pb.ListTransactionsRequest(page_size=_PAGE, decided=True)
        _fill(request, state, producer_group, None, None)
        check_kind("source", source, VerdictSource)
        if source is not None:
            request.source = transaction_pb2.VerdictSource.ValueType(source)
        if since is not None:
            request.decided_from.CopyFrom(as_timestamp("since", since))
        if until is not None:
            request.decided_until.CopyFrom(as_timestamp("until", until))
        return self._summaries(request)

    def _summaries(self, request: pb.ListTransactionsRequest) -> AsyncGenerator[TransactionSummary, None]:
        return self._paged(
            request,
            lambda broker: broker.admin.ListTransactions,
            lambda page: [TransactionSummary.of(each) for each in page.transactions],
        )

    async def get_transaction(self, transaction_id: str) -> TransactionInfo:
        """Returns all that is known of a transaction."""
        wanted = plausible_id("a transaction id", transaction_id)
        request = transaction_pb2.GetTransactionRequest(transaction_id=wanted)
        found = await self._link.call(lambda broker: broker.transactions.GetTransaction, request)
        return transaction_info(found.transaction)

    async def resolve_transaction(
        self, transaction_id: str, resolution: Resolution, reason: str, *, operator: str = ""
    ) -> TransactionResult:
        """Decides a transaction for its producer, or has it checked again.

        Args:
            transaction_id: Identity of the transaction.
            resolution: What to do.
            reason: Why; recorded with the transaction.
            operator: Name of the operator, recorded likewise; with access control, the principal's counts.

        Raises:
            RequestRefused: Among others with the reason ``VERDICT_CONFLICT``: it has the opposite verdict.
        """
        wanted = plausible_id("a transaction id", transaction_id)
        request = pb.ResolveTransactionRequest(
            transaction_id=wanted,
            resolution=_resolution(resolution),
            reason=text_of_reason(reason),
            operator=operator,
        )
        answer = await self._link.call(lambda broker: broker.admin.ResolveTransaction, request)
        return transaction_result(answer.result, wanted)

    def resolve_transactions(
        self,
        resolution: Resolution,
        reason: str = "",
        *,
        state: TransactionState | None = None,
        producer_group: str | None = None,
        topic: str | None = None,
        older_than: Span | None = None,
        prepared_before: datetime | None = None,
        operator: str = "",
        dry_run: bool = False,
    ) -> AsyncGenerator[ResolveProgress, None]:
        """Decides all matching transactions without a verdict, or has them checked again, as it is iterated over.

        At least one of ``state``, ``producer_group``, ``topic``, ``older_than`` and ``prepared_before`` is needed.

        Args:
            resolution: What to do.
            reason: Why; needed unless it is a dry run; recorded with each transaction.
            state: Only PREPARED or PARKED ones; None: both.
            producer_group: Only those of this producer group.
            topic: Only those with a message for this topic.
            older_than: Only those prepared at least this long ago, in seconds or as a timedelta.
            prepared_before: Only those prepared before this time, such as ``as_of`` of a dry run; with its time zone.
            operator: Name of the operator, recorded likewise; with access control, the principal's counts.
            dry_run: Only count those that match.

        Returns:
            Iterates over its progress. The last one has ``done``; stopping before leaves the rest unchanged.
        """
        request = pb.ResolveTransactionsRequest(
            resolution=_resolution(resolution), reason=text_of_reason(reason), operator=operator, dry_run=dry_run
        )
        _fill(request, state, producer_group, topic, older_than)
        if prepared_before is not None:
            request.prepared_before.CopyFrom(as_timestamp("prepared_before", prepared_before))
        return self._progress(lambda broker: broker.admin.ResolveTransactions, request, ResolveProgress.of)


def _fill(
    request: pb.ListTransactionsRequest | pb.ResolveTransactionsRequest,
    state: TransactionState | None,
    producer_group: str | None,
    topic: str | None,
    older_than: Span | None,
) -> None:
    check_kind("state", state, TransactionState)
    if state is not None:
        request.state = transaction_pb2.TransactionState.ValueType(state)
    if producer_group is not None:
        check_text("producer_group", producer_group, _GROUP)
        request.producer_group = producer_group
    if topic is not None:
        check_text("topic", topic, _TOPIC)
        request.topic = topic
    if older_than is not None:
        request.older_than.CopyFrom(as_duration("older_than", older_than))


def _resolution(resolution: Resolution) -> pb.Resolution.ValueType:
    if not isinstance(resolution, Resolution):
        msg = f"resolution is a Resolution, such as Resolution.COMMIT, not {resolution!r}"
        raise TypeError(msg)
    return pb.Resolution.ValueType(resolution)
