"""Messages that were applied: their effect in a database, and a mark of it, in one transaction.

A consumer may receive a message again, and a producer may send the same thing twice. The mark, under the message's
business key, has the effect happen once.
"""

from consumer_sdk.applied.applied import AppliedMessages
from consumer_sdk.applied.async_applied import AsyncAppliedMessages
from consumer_sdk.applied.keys import BusinessKey, NoBusinessKey, by_dedup_key, by_message_id, by_property
from consumer_sdk.applied.settings import AppliedSettings

__all__ = [
    "AppliedMessages",
    "AppliedSettings",
    "AsyncAppliedMessages",
    "BusinessKey",
    "NoBusinessKey",
    "by_dedup_key",
    "by_message_id",
    "by_property",
]
