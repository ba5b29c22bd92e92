"""The outbox: messages are rows of the user's own database, written inside of the business transaction.

Start with Outbox: ``outbox.put(session, message)``, or the block of a TransactionProducer that has one. A relay, in the
same process or ``halfmq relay``, sends the rows: each is in the log exactly once.
"""

from producer_sdk.outbox.async_outbox import AsyncOutbox
from producer_sdk.outbox.broker_target import BrokerTarget
from producer_sdk.outbox.outbox import Outbox
from producer_sdk.outbox.settings import RelaySettings
from producer_sdk.outbox.states import FailedMessage, OutboxState, OutboxStatus
from producer_sdk.outbox.target import NotTried, RelayTarget

__all__ = [
    "AsyncOutbox",
    "BrokerTarget",
    "FailedMessage",
    "NotTried",
    "Outbox",
    "OutboxState",
    "OutboxStatus",
    "RelaySettings",
    "RelayTarget",
]
