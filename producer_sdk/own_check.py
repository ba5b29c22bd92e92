"""The check that a producer runs itself for a transaction whose block an exception left.

The exception alone does not determine the outcome. After a connection that breaks during COMMIT, a cancelled task or
Ctrl-C the database may have committed, and a rollback would lose its messages.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from client_core.errors import HalfmqError
from client_core.states import LocalTransactionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.message import HalfMessages
    from producer_sdk.listener import ListenerCaller

__all__ = ["OwnCheck"]

_log = logging.getLogger("halfmq.producer")

# Seconds. A check may wait for a lock that the caller holds, in its process or in its database.
_PATIENCE = 5.0


class OwnCheck:
    """Asks the listener, and passes on its verdict."""

    def __init__(self, listener: ListenerCaller) -> None:
        """Takes the listener."""
        self._listener = listener
        self._asking: set[asyncio.Task[None]] = set()

    async def conclude(self, half: HalfMessages, verdict: Callable[[LocalTransactionState], Awaitable[None]]) -> None:
        """Settles a transaction whose block an exception left; if that fails, the broker sends a check.

        It waits up to 5 seconds; after that the check continues in the background.

        Args:
            half: The half messages.
            verdict: Called with COMMIT or ROLLBACK; not called if the listener answers UNKNOWN.
        """
        asking = asyncio.create_task(self._ask(half, verdict))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await asyncio.wait([asking], timeout=_PATIENCE)

    async def close(self, grace: float) -> None:
        """Waits for background checks.

        Args:
            grace: Seconds for that, at most.
        """
        if self._asking:
            await asyncio.wait(self._asking, timeout=grace)
        for asking in self._asking:
            asking.cancel()

    async def _ask(self, half: HalfMessages, verdict: Callable[[LocalTransactionState], Awaitable[None]]) -> None:
        state, _ = await self._listener.check(half)
        if state is LocalTransactionState.UNKNOWN:
            return
        try:
            await verdict(state)
        except HalfmqError as failure:
            # The application's own exception is more informative.
            _log.warning("%s", failure, extra={"transaction_id": half.transaction_id})
