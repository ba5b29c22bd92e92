"""The fence: a row in the user's database, written inside the local transaction, that answers checks exactly.

Start with TransactionFence and the block ``with producer.transaction(session) as tx``.
"""

from producer_sdk.fence.async_fence import AsyncTransactionFence
from producer_sdk.fence.fence import TransactionFence
from producer_sdk.fence.settings import FenceSettings

__all__ = ["AsyncTransactionFence", "FenceSettings", "TransactionFence"]
