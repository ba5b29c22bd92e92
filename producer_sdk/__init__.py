"""Transactional messages for Python: what is sent and what the database commits both happen, or neither does.

Start with TransactionProducer::

    with TransactionProducer("localhost:8085", "order-service", OrderListener()) as producer:
        with producer.transaction() as tx, database.begin() as db:
            tx.send("orders", order.to_json())
            db.execute(insert_order, order, tx.transaction_id)
"""

from __future__ import annotations

from producer_sdk.async_producer import AsyncProducer
from producer_sdk.async_transaction_producer import AsyncTransactionProducer
from producer_sdk.batching import BatchLimits
from producer_sdk.connection import RetryConfig, TlsConfig
from producer_sdk.errors import (
    BatchRefused,
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    HalfmqError,
    ListenerRequired,
    PrepareUnconfirmed,
    RequestRefused,
    TransactionRefused,
    VerdictUnconfirmed,
)
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
from producer_sdk.transaction import AsyncTransaction

__all__ = [
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransactionListener",
    "AsyncTransactionProducer",
    "BatchLimits",
    "BatchRefused",
    "BrokerFailed",
    "BrokerUnavailable",
    "CheckInfo",
    "ClientClosed",
    "ConfigurationError",
    "HalfMessages",
    "HalfmqError",
    "ListenerRequired",
    "LocalTransactionState",
    "LogPosition",
    "Message",
    "PrepareUnconfirmed",
    "Producer",
    "RequestRefused",
    "RetryConfig",
    "TlsConfig",
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
