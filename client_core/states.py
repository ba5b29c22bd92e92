"""Where transactions stand, in the words of the producer and of the broker."""

from __future__ import annotations

from enum import Enum, IntEnum

from halfmq.v1 import transaction_pb2 as pb

__all__ = ["LocalTransactionState", "TransactionState", "VerdictSource"]


class LocalTransactionState(Enum):
    """What a listener says about the local transaction. The names are RocketMQ's."""

    COMMIT = "commit"
    """It committed: release the messages."""
    ROLLBACK = "rollback"
    """It did not happen and never will: drop the messages."""
    UNKNOWN = "unknown"
    """It is not known yet: ask again later."""


class TransactionState(IntEnum):
    """Where the broker says a transaction stands. COMMITTED and ROLLED_BACK never change again."""

    UNSPECIFIED = pb.TRANSACTION_STATE_UNSPECIFIED
    """The broker does not know the transaction, or did not say."""
    PREPARED = pb.TRANSACTION_STATE_PREPARED
    """Half messages are stored, the verdict is open."""
    COMMITTED = pb.TRANSACTION_STATE_COMMITTED
    """Its messages are in the log."""
    ROLLED_BACK = pb.TRANSACTION_STATE_ROLLED_BACK
    """Its messages are gone."""
    PARKED = pb.TRANSACTION_STATE_PARKED
    """All checks were used up without a verdict; an operator decides."""


class VerdictSource(IntEnum):
    """Who gave a verdict."""

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
    """Nobody had to: an ordinary message."""
