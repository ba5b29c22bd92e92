"""What operators ask of a broker about transactions, by the protocol itself: the SDK's client has it not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

import grpc

from halfmq.v1 import admin_pb2, admin_pb2_grpc, transaction_pb2, transaction_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PREPARED = transaction_pb2.TRANSACTION_STATE_PREPARED
COMMITTED = transaction_pb2.TRANSACTION_STATE_COMMITTED
ROLLED_BACK = transaction_pb2.TRANSACTION_STATE_ROLLED_BACK
PARKED = transaction_pb2.TRANSACTION_STATE_PARKED
COMMIT = admin_pb2.RESOLUTION_COMMIT
ROLLBACK = admin_pb2.RESOLUTION_ROLLBACK
CHECK_AGAIN = admin_pb2.RESOLUTION_CHECK_AGAIN

DEADLINE = 60.0
_SECONDS = 30.0


class Operator:
    """A connection to a broker; a context manager that closes it."""

    def __init__(self, endpoint: str) -> None:
        """Connects when it is first used."""
        self._channel = grpc.insecure_channel(endpoint)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._transactions = transaction_pb2_grpc.TransactionServiceStub(self._channel)

    def undecided(self, topic: str) -> list[admin_pb2.TransactionSummary]:
        """Transactions of a topic without a verdict, oldest first; 1,000 at most."""
        request = admin_pb2.ListTransactionsRequest(topic=topic, page_size=1000)
        return list(self._admin.ListTransactions(request, timeout=_SECONDS).transactions)

    def transaction(self, transaction_id: str) -> transaction_pb2.Transaction:
        """All that is known of a transaction."""
        request = transaction_pb2.GetTransactionRequest(transaction_id=transaction_id)
        return self._transactions.GetTransaction(request, timeout=_SECONDS).transaction

    def resolve(self, transaction_id: str, resolution: admin_pb2.Resolution.ValueType) -> None:
        """Decides a transaction, or has it checked again."""
        request = admin_pb2.ResolveTransactionRequest(
            transaction_id=transaction_id, resolution=resolution, reason="the order was paid", operator="anna"
        )
        result = self._admin.ResolveTransaction(request, timeout=_SECONDS).result
        assert not result.HasField("error"), result.error

    def wait(
        self, transaction_id: str, holds: Callable[[transaction_pb2.Transaction], bool]
    ) -> transaction_pb2.Transaction:
        """Waits until something holds of a transaction."""
        until = time.monotonic() + DEADLINE
        while not holds(found := self.transaction(transaction_id)):
            assert time.monotonic() < until, found
            time.sleep(0.05)
        return found

    def await_state(
        self, transaction_id: str, state: transaction_pb2.TransactionState.ValueType
    ) -> transaction_pb2.Transaction:
        """Waits until a transaction stands there."""
        return self.wait(transaction_id, lambda found: found.state == state)

    def await_undecided(self, topic: str, count: int) -> None:
        """Waits until so many transactions of a topic have no verdict."""
        until = time.monotonic() + DEADLINE
        while len(found := self.undecided(topic)) != count:
            assert time.monotonic() < until, f"{len(found)} instead of {count}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        """Does nothing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        self._channel.close()
