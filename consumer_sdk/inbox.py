"""Messages that arrived and that the application did not take yet, and the credits that follow from them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["Inbox"]


class Inbox:
    """A buffer between the stream and the application.

    It says when enough was taken to let the broker send more. Taking is safe from any thread, so that synchronous
    consumers need no trip to the event loop per message; everything else belongs to the loop.
    """

    def __init__(self, chunk: int, on_taken: Callable[[], None]) -> None:
        """Starts empty.

        Args:
            chunk: After how many messages taken ``on_taken`` is called.
            on_taken: Called in the thread that took them.
        """
        self._on_taken = on_taken
        self._chunk = chunk
        self._lock = threading.Lock()
        self._waiting: deque[pb.Delivery] = deque()
        self._taken = 0
        self._takers: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def put(self, deliveries: Iterable[pb.Delivery]) -> None:
        """Adds what arrived, and wakes those who wait for it."""
        with self._lock:
            self._waiting.extend(deliveries)
        self.wake()

    def take(self, limit: int) -> list[pb.Delivery]:
        """Takes up to so many messages, without waiting; from any thread."""
        with self._lock:
            waiting = self._waiting
            taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
            self._taken += len(taken)
            enough = self._taken >= self._chunk
            if enough:
                self._taken = 0
        if enough:
            self._on_taken()
        return taken

    async def wait(self) -> None:
        """Waits for the next wake-up: something arrived, or the subscription ended."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.add(taker)
        try:
            await taker
        finally:
            self._takers.discard(taker)

    def wake(self) -> None:
        """Wakes everyone who waits."""
        for taker in self._takers:
            if not taker.done():
                taker.set_result(None)

    def drop(self, is_lost: Callable[[pb.Delivery], bool]) -> int:
        """Removes messages that are not ours any more, as if they had been taken; returns their number."""
        with self._lock:
            kept = [delivery for delivery in self._waiting if not is_lost(delivery)]
            dropped = len(self._waiting) - len(kept)
            self._waiting = deque(kept)
        if dropped:
            self._on_taken()
        return dropped

    def handles(self) -> set[str]:
        """Receipt handles of everything that waits."""
        with self._lock:
            return {delivery.receipt_handle for delivery in self._waiting}

    def clear(self) -> None:
        """Forgets everything that waits."""
        with self._lock:
            self._waiting.clear()
