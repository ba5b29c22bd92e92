"""AdminService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.access_admin_servicer import AccessAdminServicer
from broker.api.converters import transactions
from broker.api.group_admin_servicer import GroupAdminServicer
from broker.api.topic_admin_servicer import TopicAdminServicer
from broker.domain.access import Action, Kind
from broker.domain.ids import parse_id
from broker.domain.transaction import TransactionState
from broker.errors import InvalidArgument
from broker.services.rights import CALLER
from broker.wire import times
from halfmq.v1 import admin_pb2, transaction_pb2

if TYPE_CHECKING:
    import grpc

    from broker.domain.clock import Clock
    from broker.services.operating.access import AccessOperations
    from broker.services.operating.dead_letters import DeadLetterService
    from broker.services.operating.groups import GroupService
    from broker.services.operating.topics import TopicService
    from broker.services.operating.transactions import TransactionOperations

    _Context = grpc.aio.ServicerContext[object, object]

_VERDICTS = {
    admin_pb2.RESOLUTION_COMMIT: True,
    admin_pb2.RESOLUTION_ROLLBACK: False,
    admin_pb2.RESOLUTION_CHECK_AGAIN: None,
}
_LISTED = {
    transaction_pb2.TRANSACTION_STATE_UNSPECIFIED: None,
    transaction_pb2.TRANSACTION_STATE_PREPARED: TransactionState.PREPARED,
    transaction_pb2.TRANSACTION_STATE_PARKED: TransactionState.PARKED,
}


class AdminServicer(TopicAdminServicer, GroupAdminServicer, AccessAdminServicer):
    """Implements AdminService: administration."""

    def __init__(
        self,
        topics: TopicService,
        groups: GroupService,
        dead_letters: DeadLetterService,
        transactions: TransactionOperations,
        access: AccessOperations,
        clock: Clock,
    ) -> None:
        """Takes the services it exposes, and the database's clock."""
        self._topics = topics
        self._groups = groups
        self._dead_letters = dead_letters
        self._transactions = transactions
        self._access = access
        self._clock = clock

    async def ListTransactions(
        self, request: admin_pb2.ListTransactionsRequest, context: _Context
    ) -> admin_pb2.ListTransactionsResponse:
        """Lists transactions without a verdict."""
        if request.state not in _LISTED:
            raise InvalidArgument(
                "Only transactions without a verdict are listed: PREPARED, PARKED, or leave it out for both.",
                field="state",
            )
        before = None
        if request.HasField("older_than"):
            before = self._clock.now() - times.micros(request.older_than, "older_than")
        found, following = await self._transactions.undecided(
            state=_LISTED[request.state],
            producer_group=request.producer_group,
            topic=request.topic,
            prepared_before=before,
            page_size=request.page_size,
            page_token=request.page_token,
            may=CALLER.get().judge(Action.LIST, Kind.GROUP),
        )
        return admin_pb2.ListTransactionsResponse(
            transactions=[transactions.transaction_summary(summary) for summary in found], next_page_token=following
        )

    async def ResolveTransaction(
        self, request: admin_pb2.ResolveTransactionRequest, context: _Context
    ) -> admin_pb2.ResolveTransactionResponse:
        """Decides a transaction for the producer."""
        if request.resolution not in _VERDICTS:
            raise InvalidArgument(
                "Say RESOLUTION_COMMIT, RESOLUTION_ROLLBACK or RESOLUTION_CHECK_AGAIN.", field="resolution"
            )
        caller = CALLER.get()
        outcome = await self._transactions.resolve(
            parse_id(request.transaction_id),
            commit=_VERDICTS[request.resolution],
            # Who is known does not choose a name.
            operator=caller.name or request.operator,
            reason=request.reason,
            may=caller.judge(Action.OPERATE, Kind.GROUP),
        )
        return admin_pb2.ResolveTransactionResponse(result=transactions.transaction_result(outcome))
