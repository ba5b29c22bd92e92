"""The broker's view: the demo's figures come from here and from the tables, never from what was intended."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self

import grpc

from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    consumer_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfmq.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from halfmq.v1.consumer_pb2_grpc import ConsumerServiceAsyncStub
    from halfmq.v1.transaction_pb2_grpc import TransactionServiceAsyncStub

TIMEOUT = 30.0
PAGE = 1000
AT_A_TIME = 32

PREPARED = transaction_pb2.TRANSACTION_STATE_PREPARED
COMMITTED = transaction_pb2.TRANSACTION_STATE_COMMITTED
ROLLED_BACK = transaction_pb2.TRANSACTION_STATE_ROLLED_BACK
PARKED = transaction_pb2.TRANSACTION_STATE_PARKED
BY_PRODUCER = transaction_pb2.VERDICT_SOURCE_PRODUCER
BY_CHECK = transaction_pb2.VERDICT_SOURCE_CHECK


class Inspector:
    """An admin connection to the broker."""

    def __init__(self, endpoint: str) -> None:
        """Connects with the first call."""
        self._channel = grpc.aio.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", -1)])
        self._admin: AdminServiceAsyncStub = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._transactions: TransactionServiceAsyncStub = transaction_pb2_grpc.TransactionServiceStub(self._channel)
        self._consumers: ConsumerServiceAsyncStub = consumer_pb2_grpc.ConsumerServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        """Does nothing: it is usable at once."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def create(self, topic: str, group: str) -> None:
        """Creates a consumer group, and a topic unless it exists."""
        request = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic))
        with _ignoring(grpc.StatusCode.ALREADY_EXISTS):
            await self._admin.CreateTopic(request, timeout=TIMEOUT)
        wanted = admin_pb2.ConsumerGroup(name=group)
        await self._admin.CreateGroup(admin_pb2.CreateGroupRequest(group=wanted), timeout=TIMEOUT)

    async def open_transactions(self, producer_group: str) -> list[admin_pb2.TransactionSummary]:
        """The transactions of a producer group that have no verdict: prepared or parked."""
        found: list[admin_pb2.TransactionSummary] = []
        token = ""
        while True:
            request = admin_pb2.ListTransactionsRequest(producer_group=producer_group, page_size=PAGE, page_token=token)
            response = await self._admin.ListTransactions(request, timeout=TIMEOUT)
            found += response.transactions
            token = response.next_page_token
            if not token:
                return found

    async def transactions(self, ids: Iterable[str]) -> list[transaction_pb2.Transaction]:
        """All that is known of some transactions, in the order of their ids."""
        slots = asyncio.Semaphore(AT_A_TIME)

        async def one(transaction_id: str) -> transaction_pb2.Transaction:
            async with slots:
                request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
                return (await self._transactions.GetTransaction(request, timeout=TIMEOUT)).transaction

        return await asyncio.gather(*map(one, ids))

    async def offsets(self, topic: str, group: str = "") -> tuple[int, int]:
        """Messages released to a topic so far, and how many of them a consumer group has not handled yet."""
        request = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
        queues = (await self._consumers.QueueOffsets(request, timeout=TIMEOUT)).queues
        return sum(queue.max_offset for queue in queues), sum(queue.lag for queue in queues)

    async def clean_up(self, producer_groups: Iterable[str], consumer_group: str, topic: str | None) -> None:
        """Removes a run's remains from the broker: open transactions, the consumer group, and optionally a topic."""
        for group in producer_groups:
            for summary in await self.open_transactions(group):
                request = admin_pb2.ResolveTransactionRequest(
                    transaction_id=summary.transaction_id,
                    resolution=admin_pb2.RESOLUTION_ROLLBACK,
                    reason="the demo is over",
                    operator="halfmq demo",
                )
                await self._admin.ResolveTransaction(request, timeout=TIMEOUT)
        with _ignoring(grpc.StatusCode.NOT_FOUND):
            await self._admin.DeleteGroup(admin_pb2.DeleteGroupRequest(group=consumer_group), timeout=TIMEOUT)
        for name in (f"%DLQ%{consumer_group}", topic):
            if name is not None:
                with _ignoring(grpc.StatusCode.NOT_FOUND):
                    await self._admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=name), timeout=2 * TIMEOUT)


@contextlib.contextmanager
def _ignoring(code: grpc.StatusCode) -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is not code:
            raise


def deciders(transaction: transaction_pb2.Transaction) -> set[str]:
    """The producers that answered a check of a transaction with COMMIT or ROLLBACK."""
    verdicts = {transaction_pb2.CHECK_VERDICT_COMMIT, transaction_pb2.CHECK_VERDICT_ROLLBACK}
    return {check.client_id for check in transaction.checks if check.verdict in verdicts}
