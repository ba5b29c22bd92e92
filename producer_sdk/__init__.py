"""Transactional messages for Python: what is sent and what the database commits both happen, or neither does.

Start with TransactionProducer. The listener answers checks by what the block writes under the transaction's id::

    with TransactionProducer("localhost:8085", "order-service", OrderListener()) as producer:
        with producer.transaction() as tx, database.begin() as db:
            tx.send("orders", order.to_json())
            db.execute(note_transaction, {"id": tx.transaction_id, "status": "done"})
            db.execute(insert_order, order)
"""

from __future__ import annotations

import os

# Before gRPC is loaded. While a thread is in a call, its handling of forks kills some children that are forked to run
# another program, as PySpark does for its JVM; and asyncio's clients, which these are, gain nothing by it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from producer_sdk.admin import (
    Admin,
    AsyncAdmin,
    DeadLetter,
    ExhaustedPolicy,
    GroupInfo,
    GroupMode,
    GroupProgress,
    MessageInfo,
    RedriveProgress,
    TimelineEvent,
    TimelineEventType,
    TopicInfo,
)
from producer_sdk.async_producer import AsyncProducer
from producer_sdk.async_transaction_producer import AsyncTransactionProducer
from producer_sdk.batching import BatchLimits
from producer_sdk.connection import RetryConfig, TlsConfig
from producer_sdk.errors import (
    BatchRecallRefused,
    BatchRefused,
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    DuplicateKey,
    HalfmqError,
    ListenerRequired,
    PrepareUnconfirmed,
    RecallRefused,
    RequestRefused,
    TransactionRefused,
    VerdictUnconfirmed,
)
from producer_sdk.filters import SqlFilter, TagFilter
from producer_sdk.listener import AsyncTransactionListener, TransactionListener
from producer_sdk.message import HalfMessages, LogPosition, Message
from producer_sdk.producer import Producer, Transaction, TransactionProducer
from producer_sdk.results import (
    CheckInfo,
    TransactionInfo,
    TransactionResult,
    TransactionSendResult,
    VerdictInfo,
)
from producer_sdk.states import LocalTransactionState, TransactionState, VerdictSource
from producer_sdk.stored import StoredMessage
from producer_sdk.transaction import AsyncTransaction

__all__ = [
    "Admin",
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "BatchLimits",
    "BatchRecallRefused",
    "BatchRefused",
    "BrokerFailed",
    "BrokerUnavailable",
    "CheckInfo",
    "ClientClosed",
    "ConfigurationError",
    "DeadLetter",
    "DuplicateKey",
    "ExhaustedPolicy",
    "GroupInfo",
    "GroupMode",
    "GroupProgress",
    "HalfMessages",
    "HalfmqError",
    "ListenerRequired",
    "LocalTransactionState",
    "LogPosition",
    "Message",
    "MessageInfo",
    "PrepareUnconfirmed",
    "Producer",
    "RecallRefused",
    "RedriveProgress",
    "RequestRefused",
    "RetryConfig",
    "SqlFilter",
    "StoredMessage",
    "TagFilter",
    "TimelineEvent",
    "TimelineEventType",
    "TlsConfig",
    "TopicInfo",
    "Transaction",
    "TransactionInfo",
    "TransactionListener",
    "TransactionProducer",
    "TransactionRefused",
    "TransactionResult",
    "TransactionSendResult",
    "TransactionState",
    "VerdictInfo",
    "VerdictSource",
    "VerdictUnconfirmed",
]
