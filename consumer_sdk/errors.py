"""Errors of the consumer SDK.

HalfmqError                  base of all errors of halfmq's SDKs (producer_sdk)
├── ConfigurationError       settings that cannot work (producer_sdk)
├── ClientClosed             the client was used after close() (producer_sdk)
├── BrokerUnavailable        no broker answered before the retry deadline (producer_sdk)
├── BrokerFailed             a broker failed to process the request (producer_sdk)
├── RequestRefused           the broker refused a request (producer_sdk)
└── ConsumerError            base of errors of consumers only
    ├── SubscriptionRefused  the broker refuses the subscription: a group or topic that does not exist, and the like
    ├── ReceiptRefused       an ack or nack of one message was refused
    │   └── StaleReceipt     the lease has ended: the message was, or will be, delivered again
    └── BatchReceiptsRefused some messages of one ack or nack were refused; names them

Those marked (producer_sdk) are the same classes as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.errors import (
    BrokerFailed,
    BrokerUnavailable,
    ClientClosed,
    ConfigurationError,
    HalfmqError,
    RequestRefused,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BatchReceiptsRefused",
    "BrokerFailed",
    "BrokerUnavailable",
    "ClientClosed",
    "ConfigurationError",
    "ConsumerError",
    "HalfmqError",
    "ReceiptRefused",
    "RequestRefused",
    "StaleReceipt",
    "SubscriptionRefused",
]


class ConsumerError(HalfmqError):
    """Base of errors of consumers; the fields are those of HalfmqError."""


class SubscriptionRefused(ConsumerError):
    """The broker refuses the subscription; create the group and the topics, or correct their names."""


class ReceiptRefused(ConsumerError):
    """An ack or nack of one message was refused.

    Attributes:
        receipt_handle: The receipt handle that was refused.
    """

    receipt_handle: str = ""


class StaleReceipt(ReceiptRefused):
    """The lease had ended when the ack or nack arrived: the message was, or will be, delivered again."""


class BatchReceiptsRefused(ConsumerError):
    """Some messages of one ack or nack were refused; the others are settled.

    Attributes:
        refused: One error per message that was refused; each names its receipt handle.
    """

    def __init__(self, message: str, refused: Sequence[HalfmqError]) -> None:
        """Creates the error from those of the messages."""
        super().__init__(message)
        self.refused = tuple(refused)

    def __reduce__(self) -> tuple[type[BatchReceiptsRefused], tuple[str, tuple[HalfmqError, ...]]]:
        """Preserves the single errors when this one is pickled."""
        return (type(self), (str(self), self.refused))
