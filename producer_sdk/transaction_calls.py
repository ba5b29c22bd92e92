"""The three calls of a transaction: prepare, commit and rollback, batched per kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration

from client_core.batching import Batcher, BatchLimits, ask
from client_core.connection import text_of_reason
from client_core.errors import (
    ClientClosed,
    HalfmqError,
    PrepareUnconfirmed,
    RequestRefused,
    TransactionRefused,
    VerdictUnconfirmed,
)
from client_core.results import TransactionResult, transaction_result
from client_core.tracing import current_tracing
from halfmq.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from client_core.connection import BrokerLink
    from halfmq.v1 import message_pb2

__all__ = ["TransactionCalls"]

# An id with its tag and length.
_ID_SIZE = 38
# Concurrent rollback requests: each carries one reason, so different reasons must not wait for each other.
_ROLLBACKS_IN_FLIGHT = 4


class _Decided(NamedTuple):
    """A transaction to commit or to roll back, and the trace context of that."""

    transaction_id: str
    traceparent: str = ""


class TransactionCalls:
    """Sends prepares, commits and rollbacks, batched per kind."""

    def __init__(self, link: BrokerLink, group: str, limits: BatchLimits, client_id: str) -> None:
        """Sends nothing yet."""
        self._link = link
        self._group = group
        self._client_id = client_id
        self._prepares = Batcher(self._send_prepares, limits)
        self._commits = Batcher(self._send_commits, limits)
        several = BatchLimits(limits.items, limits.size, max(limits.in_flight, _ROLLBACKS_IN_FLIGHT))
        self._rollbacks = Batcher(self._send_rollbacks, several)

    async def prepare(
        self,
        transaction_id: str,
        messages: Iterable[message_pb2.Message],
        first_position: int = 0,
        first_check_delay: float | None = None,
    ) -> TransactionResult:
        """Stores half messages durably.

        Args:
            transaction_id: Identity of the transaction.
            messages: The messages, in the order of their positions.
            first_position: Number of messages that the transaction has already.
            first_check_delay: Seconds before the first check, at least; None: the broker's default.

        Raises:
            RequestRefused: The broker refused, or they are larger than a request may be; nothing was stored.
            PrepareUnconfirmed: It is unknown whether they were stored.
            TypeError: A number is of the wrong type.
            ValueError: A number is out of range.
        """
        delay = None if first_check_delay is None else _duration(first_check_delay)
        try:
            half = pb.HalfTransaction(
                transaction_id=transaction_id,
                messages=messages,
                first_position=first_position,
                first_check_delay=delay,
            )
        except (TypeError, ValueError) as error:
            msg = f"first_position is the number of messages that the transaction has already, not {first_position!r}"
            raise (TypeError if isinstance(error, TypeError) else ValueError)(msg) from None
        tracing = current_tracing()
        if tracing is None:
            return await self._prepare(half, transaction_id)
        with tracing.sending("prepare", half.messages, self._client_id, transaction_id):
            return await self._prepare(half, transaction_id)

    async def _prepare(self, half: pb.HalfTransaction, transaction_id: str) -> TransactionResult:
        try:
            result = await ask(self._prepares, self._link.retry, half, half.ByteSize())
        except (RequestRefused, ClientClosed) as error:
            raise _about(error, transaction_id) from error
        except HalfmqError as error:
            raise _doubtful(error, transaction_id) from error
        try:
            return transaction_result(result, transaction_id)
        except RequestRefused:
            raise
        except HalfmqError as error:
            raise _doubtful(error, transaction_id) from error

    async def commit(self, transaction_id: str) -> TransactionResult:
        """Releases the messages of a transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the id; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the commit was recorded.
        """
        return await self._give_verdict("commit", self._commits, transaction_id)

    async def rollback(self, transaction_id: str, reason: str = "") -> TransactionResult:
        """Drops the messages of a transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the id or the reason; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded.
            TypeError: The reason is no text.
            ValueError: The reason cannot be written in UTF-8.
        """
        return await self._give_verdict("rollback", self._rollbacks, transaction_id, text_of_reason(reason))

    async def _give_verdict(
        self, verdict: str, batcher: Batcher[_Decided, pb.TransactionResult], transaction_id: str, reason: str = ""
    ) -> TransactionResult:
        tracing = current_tracing()
        if tracing is None:
            return await self._decide(verdict, batcher, _Decided(transaction_id), reason)
        with tracing.deciding(verdict, transaction_id, self._client_id) as traceparent:
            return await self._decide(verdict, batcher, _Decided(transaction_id, traceparent), reason)

    async def _decide(
        self, verdict: str, batcher: Batcher[_Decided, pb.TransactionResult], decided: _Decided, reason: str
    ) -> TransactionResult:
        transaction_id = decided.transaction_id
        try:
            size = _ID_SIZE + len(decided.traceparent)
            result = await ask(batcher, self._link.retry, decided, size, reason)
        except HalfmqError as error:
            if isinstance(error, RequestRefused) and error.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise _still_open(error, transaction_id, verdict) from error
            # Another refusal may follow an earlier try that was recorded.
            raise _unconfirmed(error, transaction_id, verdict) from error
        try:
            return transaction_result(result, transaction_id)
        except TransactionRefused:
            raise
        except RequestRefused as error:
            raise _still_open(error, transaction_id, verdict) from error
        except HalfmqError as error:
            raise _unconfirmed(error, transaction_id, verdict) from error

    async def settle_prepares(self) -> None:
        """Waits until every prepare in flight has completed or failed."""
        await self._prepares.drain()

    async def drain(self) -> None:
        """Waits until everything submitted has its result."""
        for batcher in (self._prepares, self._commits, self._rollbacks):
            await batcher.drain()

    async def _send_prepares(self, halves: list[pb.HalfTransaction], _: str) -> Sequence[pb.TransactionResult]:
        request = pb.PrepareRequest(producer_group=self._group, transactions=halves)
        return (await self._link.call(lambda broker: broker.transactions.Prepare, request)).results

    async def _send_commits(self, decided: list[_Decided], _: str) -> Sequence[pb.TransactionResult]:
        request = pb.CommitRequest(
            transaction_ids=[each.transaction_id for each in decided], traceparents=_traceparents(decided)
        )
        return (await self._link.call(lambda broker: broker.transactions.Commit, request)).results

    async def _send_rollbacks(self, decided: list[_Decided], reason: str) -> Sequence[pb.TransactionResult]:
        request = pb.RollbackRequest(
            transaction_ids=[each.transaction_id for each in decided],
            reason=reason,
            traceparents=_traceparents(decided),
        )
        return (await self._link.call(lambda broker: broker.transactions.Rollback, request)).results


def _traceparents(decided: Sequence[_Decided]) -> list[str]:
    return [each.traceparent for each in decided] if any(each.traceparent for each in decided) else []


def _duration(seconds: float) -> Duration:
    duration = Duration()
    try:
        duration.FromNanoseconds(round(seconds * 1e9))
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"first_check_delay is a number of seconds, up to 24 h, or None, not {seconds!r}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(msg) from None
    return duration


def _about(error: HalfmqError, transaction_id: str) -> HalfmqError:
    # The failure of one request is shared by all of its items; each gets a separate error.
    return type(error)(
        str(error), code=error.code, reason=error.reason, field=error.field, transaction_id=transaction_id
    )


def _doubtful(error: HalfmqError, transaction_id: str) -> PrepareUnconfirmed:
    return PrepareUnconfirmed(
        f"it is unknown whether transaction {transaction_id} was prepared: {error}; roll the local transaction back, "
        "or repeat the prepare with the same id",
        code=error.code,
        reason=error.reason,
        transaction_id=transaction_id,
    )


def _still_open(error: HalfmqError, transaction_id: str, verdict: str) -> RequestRefused:
    return RequestRefused(
        f"the {verdict} of transaction {transaction_id} was refused: {error}; the half messages that it has still "
        "wait for a verdict: correct the call, or leave it to the check",
        code=error.code,
        reason=error.reason,
        field=error.field,
        transaction_id=transaction_id,
    )


def _unconfirmed(error: HalfmqError, transaction_id: str, verdict: str) -> VerdictUnconfirmed:
    return VerdictUnconfirmed(
        f"the {verdict} of transaction {transaction_id} is unconfirmed: {error}; if it was not recorded, the broker "
        "asks this producer group's listener, whose answer decides",
        code=error.code,
        reason=error.reason,
        transaction_id=transaction_id,
    )
