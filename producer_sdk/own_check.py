"""The check that a producer makes by itself: how did the local transaction end whose block an exception left?

The exception alone does not tell. A connection that breaks during COMMIT, a cancelled task, Ctrl-C: the database may
have committed all the same, and a rollback would lose the messages of what is there.
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

# Seconds. A check may wait for what the caller holds: a lock of its process, or a row in its database.
_PATIENCE = 5.0


class OwnCheck:
    """Asks the listener, and has its word passed on."""

    def __init__(self, listener: ListenerCaller) -> None:
        """Takes whom to ask."""
        self._listener = listener
        self._asking: set[asyncio.Task[None]] = set()

    async def conclude(self, half: HalfMessages, verdict: Callable[[LocalTransactionState], Awaitable[None]]) -> None:
        """Settles a transaction whose block an exception left; where that fails, the broker asks the listener.

        It takes up to 5 seconds here; what takes longer goes on in the background.

        Args:
            half: The half messages.
            verdict: Told COMMIT or ROLLBACK; it is not called where the listener does not know.
        """
        asking = asyncio.create_task(self._ask(half, verdict))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        await asyncio.wait([asking], timeout=_PATIENCE)

    async def close(self, grace: float) -> None:
        """Waits for what goes on in the background.

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
            # The application's own exception is on its way and tells more.
            _log.warning("%s", failure)
