"""States of transactions, for producers and brokers."""

from __future__ import annotations

from enum import Enum, IntEnum

from halfmq.v1 import transaction_pb2 as pb

__all__ = ["LocalTransactionState", "TransactionState", "VerdictSource"]


class LocalTransactionState(Enum):
    """A listener's answer about the local transaction. The names are RocketMQ's."""

    COMMIT = "commit"
    """It committed: release the messages."""
    ROLLBACK = "rollback"
    """It did not happen and never will: drop the messages."""
    UNKNOWN = "unknown"
    """It is not known yet: check again later."""


class TransactionState(IntEnum):
    """State of a transaction at the broker. COMMITTED and ROLLED_BACK are final."""

    UNSPECIFIED = pb.TRANSACTION_STATE_UNSPECIFIED
    """The broker does not know the transaction, or did not say."""
    PREPARED = pb.TRANSACTION_STATE_PREPARED
    """Half messages are stored; there is no verdict yet."""
    COMMITTED = pb.TRANSACTION_STATE_COMMITTED
    """Its messages are in the log."""
    ROLLED_BACK = pb.TRANSACTION_STATE_ROLLED_BACK
    """Its messages were dropped."""
    PARKED = pb.TRANSACTION_STATE_PARKED
    """All checks were used up without a verdict; an operator decides."""


class VerdictSource(IntEnum):
    """Source of a verdict."""

    UNSPECIFIED = pb.VERDICT_SOURCE_UNSPECIFIED
    """The broker did not say."""
    PRODUCER = pb.VERDICT_SOURCE_PRODUCER
    """The producer, by commit or rollback."""
    CHECK = pb.VERDICT_SOURCE_CHECK
    """A producer, answering a check."""
    OPERATOR = pb.VERDICT_SOURCE_OPERATOR
    """An operator."""
    SEND = pb.VERDICT_SOURCE_SEND
    SINK = pb.VERDICT_SOURCE_SINK
    """None needed: an ordinary message."""
