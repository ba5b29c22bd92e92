"""Consumers of committed messages, under leases and at least once.

Start with Consumer::

    with Consumer("localhost:8085", "shipping", "orders") as consumer:
        for message in consumer:
            ship(message.text)
            message.ack()
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
from client_core.connection import BearerToken, Connection, RetryConfig, TlsConfig, TokenFile
from client_core.filters import SqlFilter, TagFilter
from client_core.message import LogPosition
from client_core.old_names import lead_on as _lead_on
from client_core.stored import StoredMessage
from consumer_sdk.async_consumer import AsyncConsumer
from consumer_sdk.consumer import Consumer
from consumer_sdk.errors import (
    BatchReceiptsRefused,
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    ConsumerError,
    HalfmqError,
    ReceiptRefused,
    RequestRefused,
    StaleReceipt,
    SubscriptionRefused,
)
from consumer_sdk.message import AsyncReceivedMessage, ReceivedMessage
from consumer_sdk.reading import AsyncQueueReader, QueueMeasure, QueueOffset, QueueReader, QueueSlice

__all__ = [
    "AccessRule",
    "Admin",
    "AgeBucket",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncQueueReader",
    "AsyncReceivedMessage",
    "AuditOutcome",
    "AuditRecord",
    "BatchReceiptsRefused",
    "BearerToken",
    "BrokerFailed",
    "BrokerHealth",
    "BrokerStatus",
    "BrokerUnavailable",
    "ClientClosed",
    "ClientKind",
    "Compression",
    "ConfigurationChange",
    "ConfigurationError",
    "ConnectedClient",
    "Connection",
    "Consumer",
    "ConsumerError",
    "DeadLetter",
    "ExhaustedPolicy",
    "GroupInfo",
    "GroupLag",
    "GroupMode",
    "GroupProgress",
    "HalfmqError",
    "LogPosition",
    "MessageInfo",
    "Overview",
    "PendingOfGroup",
    "PurgeProgress",
    "QueueInfo",
    "QueueMeasure",
    "QueueOffset",
    "QueueReader",
    "QueueSlice",
    "Quota",
    "ReceiptRefused",
    "ReceivedMessage",
    "RedriveProgress",
    "RequestRefused",
    "Resolution",
    "ResolveProgress",
    "RetryConfig",
    "SqlFilter",
    "StaleReceipt",
    "StoredMessage",
    "SubscriptionRefused",
    "TagFilter",
    "TimelineEvent",
    "TimelineEventType",
    "TlsConfig",
    "TokenFile",
    "TopicInfo",
    "TransactionSummary",
]

_lead_on({"consumer_sdk.queues": "consumer_sdk.reading"})
