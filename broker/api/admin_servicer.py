"""AdminService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import converters
from broker.domain.ids import parse_id
from broker.domain.transaction import TransactionState
from broker.errors import InvalidArgument
from halfmq.v1 import admin_pb2, admin_pb2_grpc, transaction_pb2

if TYPE_CHECKING:
    import grpc

    from broker.domain.clock import Clock
    from broker.services.catalog import Catalog
    from broker.services.transactions import TransactionService

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


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """What operators need."""

    def __init__(self, catalog: Catalog, transactions: TransactionService, clock: Clock) -> None:
        """Takes the services it speaks for."""
        self._catalog = catalog
        self._transactions = transactions
        self._clock = clock

    async def CreateTopic(
        self, request: admin_pb2.CreateTopicRequest, context: _Context
    ) -> admin_pb2.CreateTopicResponse:
        """Creates a topic."""
        wanted = request.topic
        retention = converters.micros(wanted.retention, "topic.retention")
        topic = await self._catalog.create_topic(wanted.name, wanted.queue_count, retention)
        return admin_pb2.CreateTopicResponse(topic=converters.topic(topic))

    async def ListTopics(self, request: admin_pb2.ListTopicsRequest, context: _Context) -> admin_pb2.ListTopicsResponse:
        """Lists topics."""
        topics, following = await self._catalog.topics(request.page_token, request.page_size)
        return admin_pb2.ListTopicsResponse(
            topics=[converters.topic(topic) for topic in topics], next_page_token=following
        )

    async def DescribeTopic(
        self, request: admin_pb2.DescribeTopicRequest, context: _Context
    ) -> admin_pb2.DescribeTopicResponse:
        """Tells a topic's settings and queues."""
        topic = await self._catalog.topic(request.topic)
        response = admin_pb2.DescribeTopicResponse(topic=converters.topic(topic))
        for state in await self._catalog.queue_states(request.topic):
            response.queues.add(queue=state.queue_no, min_offset=state.min_offset, max_offset=state.max_offset)
        return response

    async def DeleteTopic(
        self, request: admin_pb2.DeleteTopicRequest, context: _Context
    ) -> admin_pb2.DeleteTopicResponse:
        """Deletes a topic."""
        await self._catalog.delete_topic(request.topic)
        return admin_pb2.DeleteTopicResponse()

    async def CreateGroup(
        self, request: admin_pb2.CreateGroupRequest, context: _Context
    ) -> admin_pb2.CreateGroupResponse:
        """Creates a consumer group."""
        group = await self._catalog.create_group(request.group.name, request.group.max_attempts)
        return admin_pb2.CreateGroupResponse(group=converters.group(group))

    async def ListGroups(self, request: admin_pb2.ListGroupsRequest, context: _Context) -> admin_pb2.ListGroupsResponse:
        """Lists consumer groups."""
        groups, following = await self._catalog.groups(request.page_token, request.page_size)
        return admin_pb2.ListGroupsResponse(
            groups=[converters.group(group) for group in groups], next_page_token=following
        )

    async def DescribeGroup(
        self, request: admin_pb2.DescribeGroupRequest, context: _Context
    ) -> admin_pb2.DescribeGroupResponse:
        """Tells a consumer group's settings and progress."""
        group, states = await self._catalog.progress(request.group)
        return admin_pb2.DescribeGroupResponse(
            group=converters.group(group), progress=[converters.group_progress(state) for state in states]
        )

    async def DeleteGroup(
        self, request: admin_pb2.DeleteGroupRequest, context: _Context
    ) -> admin_pb2.DeleteGroupResponse:
        """Deletes a consumer group."""
        await self._catalog.delete_group(request.group)
        return admin_pb2.DeleteGroupResponse()

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
            before = self._clock.now() - converters.micros(request.older_than, "older_than")
        found, following = await self._transactions.undecided(
            state=_LISTED[request.state],
            producer_group=request.producer_group,
            topic=request.topic,
            prepared_before=before,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return admin_pb2.ListTransactionsResponse(
            transactions=[converters.transaction_summary(summary) for summary in found], next_page_token=following
        )

    async def ResolveTransaction(
        self, request: admin_pb2.ResolveTransactionRequest, context: _Context
    ) -> admin_pb2.ResolveTransactionResponse:
        """Decides a transaction in the producer's place."""
        if request.resolution not in _VERDICTS:
            raise InvalidArgument(
                "Say RESOLUTION_COMMIT, RESOLUTION_ROLLBACK or RESOLUTION_CHECK_AGAIN.", field="resolution"
            )
        outcome = await self._transactions.resolve(
            parse_id(request.transaction_id),
            commit=_VERDICTS[request.resolution],
            operator=request.operator,
            reason=request.reason,
        )
        return admin_pb2.ResolveTransactionResponse(result=converters.transaction_result(outcome))
