"""Consumers of committed messages, under leases and at least once.

Start with Consumer::

    with Consumer("localhost:8085", "shipping", "orders") as consumer:
        for message in consumer:
            ship(message.text)
            message.ack()
"""

from __future__ import annotations

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
from consumer_sdk.message import AsyncReceivedMessage, ReceivedMessage, StoredMessage
from consumer_sdk.queues import AsyncQueueReader, QueueOffset, QueueReader, QueueSlice
from producer_sdk.connection import RetryConfig, TlsConfig
from producer_sdk.message import LogPosition

__all__ = [
    "AsyncConsumer",
    "AsyncQueueReader",
    "AsyncReceivedMessage",
    "BatchReceiptsRefused",
    "BrokerFailed",
    "BrokerUnavailable",
    "ClientClosed",
    "ConfigurationError",
    "Consumer",
    "ConsumerError",
    "HalfmqError",
    "LogPosition",
    "QueueOffset",
    "QueueReader",
    "QueueSlice",
    "ReceiptRefused",
    "ReceivedMessage",
    "RequestRefused",
    "RetryConfig",
    "StaleReceipt",
    "StoredMessage",
    "SubscriptionRefused",
    "TlsConfig",
]
