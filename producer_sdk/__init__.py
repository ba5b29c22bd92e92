"""Transactional messages for Python: the messages and the database transaction both happen, or neither does.

Start with TransactionProducer. The listener answers checks from the row that the block writes under the transaction's
id::

    with TransactionProducer("localhost:8085", "order-service", OrderListener()) as producer:
        with producer.transaction() as tx, database.begin() as db:
            tx.send("orders", order.to_json())
            db.execute(note_transaction, {"id": tx.transaction_id, "status": "done"})
            db.execute(insert_order, order)
"""

from __future__ import annotations

from client_core.admin import (
    AccessRule,
    Admin,
    AgeBucket,
    AsyncAdmin,
    AuditOutcome,
    AuditRecord,
    BrokerHealth,
    BrokerStatus,
    ClientKind,
    Compression,
    ConfigurationChange,
    ConnectedClient,
    DeadLetter,
    ExhaustedPolicy,
    GroupInfo,
    GroupLag,
    GroupMode,
    GroupProgress,
    MessageInfo,
    Overview,
    PendingOfGroup,
    PurgeProgress,
    QueueInfo,
    Quota,
    RedriveProgress,
    Resolution,
    ResolveProgress,
    TimelineEvent,
    TimelineEventType,
    TopicInfo,
    TransactionSummary,
)
from client_core.batching import BatchLimits
from client_core.connection import BearerToken, Connection, RetryConfig, TlsConfig, TokenFile
from client_core.errors import (
    BatchRecallRefused,
    BatchRefused,
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    DuplicateKey,
    HalfmqError,
    ListenerRequired,
    LocalTransactionEnded,
    LocalTransactionRefused,
    PrepareUnconfirmed,
    RecallRefused,
    RequestRefused,
    TransactionRefused,
    VerdictUnconfirmed,
)
from client_core.filters import SqlFilter, TagFilter
from client_core.message import HalfMessages, LogPosition, Message
from client_core.old_names import lead_on as _lead_on
from client_core.results import (
    CheckInfo,
    OperatorAction,
    TransactionInfo,
    TransactionResult,
    TransactionSendResult,
    VerdictInfo,
)
from client_core.states import LocalTransactionState, TransactionState, VerdictSource
from client_core.stored import StoredMessage
from producer_sdk.async_producer import AsyncProducer
from producer_sdk.async_transaction import AsyncTransaction
from producer_sdk.async_transaction_producer import AsyncTransactionProducer
from producer_sdk.listener import AsyncTransactionListener, TransactionListener
from producer_sdk.producer import Producer
from producer_sdk.transaction import Transaction
from producer_sdk.transaction_producer import TransactionProducer

__all__ = [
    "AccessRule",
    "Admin",
    "AgeBucket",
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "AuditOutcome",
    "AuditRecord",
    "BatchLimits",
    "BatchRecallRefused",
    "BatchRefused",
    "BearerToken",
    "BrokerFailed",
    "BrokerHealth",
    "BrokerStatus",
    "BrokerUnavailable",
    "CheckInfo",
    "ClientClosed",
    "ClientKind",
    "Compression",
    "ConfigurationChange",
    "ConfigurationError",
    "ConnectedClient",
    "Connection",
    "DeadLetter",
    "DuplicateKey",
    "ExhaustedPolicy",
    "GroupInfo",
    "GroupLag",
    "GroupMode",
    "GroupProgress",
    "HalfMessages",
    "HalfmqError",
    "ListenerRequired",
    "LocalTransactionEnded",
    "LocalTransactionRefused",
    "LocalTransactionState",
    "LogPosition",
    "Message",
    "MessageInfo",
    "OperatorAction",
    "Overview",
    "PendingOfGroup",
    "PrepareUnconfirmed",
    "Producer",
    "PurgeProgress",
    "QueueInfo",
    "Quota",
    "RecallRefused",
    "RedriveProgress",
    "RequestRefused",
    "Resolution",
    "ResolveProgress",
    "RetryConfig",
    "SqlFilter",
    "StoredMessage",
    "TagFilter",
    "TimelineEvent",
    "TimelineEventType",
    "TlsConfig",
    "TokenFile",
    "TopicInfo",
    "Transaction",
    "TransactionInfo",
    "TransactionListener",
    "TransactionProducer",
    "TransactionRefused",
    "TransactionResult",
    "TransactionSendResult",
    "TransactionState",
    "TransactionSummary",
    "VerdictInfo",
    "VerdictSource",
    "VerdictUnconfirmed",
]

_lead_on(
    {
        "producer_sdk.connection.settings": "client_core.arguments",
        "producer_sdk.connection.times": "client_core.times",
        "producer_sdk.verdicts": "producer_sdk.transaction_calls",
    }
    | {
        f"producer_sdk.{name}": f"client_core.{name}"
        for name in (
            "admin",
            "batching",
            "connection",
            "encoding",
            "errors",
            "filters",
            "ids",
            "message",
            "positions",
            "results",
            "states",
            "stored",
        )
    }
)
