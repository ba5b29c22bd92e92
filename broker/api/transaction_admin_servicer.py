"""AdminService: the part for transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters import transactions
from broker.domain.access import Action, Kind
from broker.domain.ids import parse_id
from broker.domain.transaction import TransactionState, VerdictSource
from broker.errors import InvalidArgument
from broker.ports.transactions import DecidedSearch
from broker.services.operating.transactions import Undecided
from broker.services.rights import CALLER
from broker.wire import times
from halfmq.v1 import admin_pb2, admin_pb2_grpc, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from broker.domain.clock import Clock
    from broker.services.operating.transactions import TransactionOperations

    _Context = grpc.aio.ServicerContext[object, object]

_VERDICTS = {
    admin_pb2.RESOLUTION_COMMIT: True,
    admin_pb2.RESOLUTION_ROLLBACK: False,
    admin_pb2.RESOLUTION_CHECK_AGAIN: None,
}
_UNDECIDED = {
    transaction_pb2.TRANSACTION_STATE_UNSPECIFIED: None,
    transaction_pb2.TRANSACTION_STATE_PREPARED: TransactionState.PREPARED,
    transaction_pb2.TRANSACTION_STATE_PARKED: TransactionState.PARKED,
}

_DECIDED = {
    transaction_pb2.TRANSACTION_STATE_COMMITTED: TransactionState.COMMITTED,
    transaction_pb2.TRANSACTION_STATE_ROLLED_BACK: TransactionState.ROLLED_BACK,
}
_DECIDED_BY_SOMEBODY = frozenset([VerdictSource.PRODUCER, VerdictSource.CHECK, VerdictSource.OPERATOR])
_SOURCES = {source: frozenset([source]) for source in VerdictSource} | {0: _DECIDED_BY_SOMEBODY}


class TransactionAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of transactions."""

    _transactions: TransactionOperations
    _clock: Clock

    async def ListTransactions(
        self, request: admin_pb2.ListTransactionsRequest, context: _Context
    ) -> admin_pb2.ListTransactionsResponse:
        """Lists transactions without a verdict, or with one."""
        may = CALLER.get().judge(Action.LIST, Kind.GROUP)
        page = request.page_size, request.page_token, may
        if request.decided or request.state in _DECIDED:
            found, following = await self._transactions.decided(self._decided_search(request), *page)
        else:
            found, following = await self._transactions.undecided(self._undecided(request), *page)
        return admin_pb2.ListTransactionsResponse(
            transactions=[transactions.transaction_summary(summary) for summary in found], next_page_token=following
        )

    def _undecided(
        self, request: admin_pb2.ListTransactionsRequest | admin_pb2.ResolveTransactionsRequest
    ) -> Undecided:
        if request.state not in _UNDECIDED:
            raise InvalidArgument("PREPARED, PARKED, or leave it out for both.", field="state")
        if isinstance(request, admin_pb2.ListTransactionsRequest):
            _refuse_fields_of_decided(request)
        before = self._prepared_before(request)
        if isinstance(request, admin_pb2.ResolveTransactionsRequest) and request.HasField("prepared_before"):
            # Others may be prepared in the very microsecond of a dry run.
            bound = times.micros_of_time(request.prepared_before, "prepared_before") - 1
            before = bound if before is None else min(before, bound)
        return Undecided(_UNDECIDED[request.state], request.producer_group, request.topic, before)

    def _prepared_before(
        self, request: admin_pb2.ListTransactionsRequest | admin_pb2.ResolveTransactionsRequest
    ) -> int | None:
        if not request.HasField("older_than"):
            return None
        return self._clock.now() - times.micros(request.older_than, "older_than")

    def _decided_search(self, request: admin_pb2.ListTransactionsRequest) -> DecidedSearch:
        if request.state and request.state not in _DECIDED:
            raise InvalidArgument(
                "Those with a verdict are COMMITTED or ROLLED_BACK, or leave it out for both.", field="state"
            )
        if request.source not in _SOURCES:
            raise InvalidArgument(f"There is no source {request.source}.", field="source")
        if request.topic:
            raise InvalidArgument(
                "The topics of transactions with a verdict are not stored; look for its messages with FindMessages.",
                field="topic",
            )
        return DecidedSearch(
            state=_DECIDED.get(request.state),
            producer_group=request.producer_group or None,
            sources=_SOURCES[request.source],
            since=times.micros_of_time(request.decided_from, "decided_from")
            if request.HasField("decided_from")
            else None,
            until=times.micros_of_time(request.decided_until, "decided_until")
            if request.HasField("decided_until")
            else None,
            prepared_before=self._prepared_before(request),
        )

    async def ResolveTransaction(
        self, request: admin_pb2.ResolveTransactionRequest, context: _Context
    ) -> admin_pb2.ResolveTransactionResponse:
        """Decides a transaction for the producer."""
        verdict = _verdict(request.resolution)
        caller = CALLER.get()
        outcome = await self._transactions.resolve(
            parse_id(request.transaction_id),
            commit=verdict,
            # Who is known does not choose a name.
            operator=caller.name or request.operator,
            reason=request.reason,
            may=caller.judge(Action.OPERATE, Kind.GROUP),
        )
        return admin_pb2.ResolveTransactionResponse(result=transactions.transaction_result(outcome))

    async def ResolveTransactions(
        self, request: admin_pb2.ResolveTransactionsRequest, context: _Context
    ) -> AsyncIterator[admin_pb2.ResolveTransactionsResponse]:
        """Decides all transactions that match."""
        caller = CALLER.get()
        as_of = times.timestamp(self._clock.now())
        steps = self._transactions.resolve_all(
            self._undecided(request),
            commit=_verdict(request.resolution),
            operator=caller.name or request.operator,
            reason=request.reason,
            dry_run=request.dry_run,
            may=caller.judge(Action.OPERATE, Kind.GROUP),
        )
        async for so_far in steps:
            yield admin_pb2.ResolveTransactionsResponse(
                matched=so_far.matched,
                resolved=so_far.resolved,
                left=so_far.left,
                as_of=as_of,
                examples=[transactions.transaction_summary(summary) for summary in so_far.examples],
                done=so_far.done,
            )


def _verdict(resolution: admin_pb2.Resolution.ValueType) -> bool | None:
    if resolution not in _VERDICTS:
        raise InvalidArgument(
            "Say RESOLUTION_COMMIT, RESOLUTION_ROLLBACK or RESOLUTION_CHECK_AGAIN.", field="resolution"
        )
    return _VERDICTS[resolution]


def _refuse_fields_of_decided(request: admin_pb2.ListTransactionsRequest) -> None:
    given = {field.name for field, _ in request.ListFields()}
    for field in sorted(given & {"decided_from", "decided_until", "source"}):
        raise InvalidArgument("Only with decided: true.", field=field)
