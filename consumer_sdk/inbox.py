"""Messages that the application has not taken yet, and the credits that follow from them."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["Inbox", "body_size"]


class Inbox:
    """A buffer between the stream and the application.

    It reports when enough was taken to let the broker send more. Taking is safe from any thread, so that synchronous
    consumers need no round trip to the event loop per message; so is dropping. Everything else belongs to the loop.
    """

    def __init__(
        self,
        chunk: int,
        chunk_bytes: int,
        on_taken: Callable[[], None],
        in_doubt: Callable[[pb.Delivery], bool],
        on_doubt: Callable[[], None],
    ) -> None:
        """Starts empty.

        Args:
            chunk: Number of taken messages after which ``on_taken`` is called.
            chunk_bytes: The same for bytes of their bodies.
            on_taken: Called in the thread that took them.
            in_doubt: Whether another consumer may have a message by now; it stays here until that is known.
            on_doubt: Called in the thread that found such a message.
        """
        self._on_taken = on_taken
        self._in_doubt = in_doubt
        self._on_doubt = on_doubt
        self._chunk = chunk
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._waiting: deque[pb.Delivery] = deque()
        # By message group with a message being handled: those after it.
        self._aside: dict[tuple[str, str], deque[pb.Delivery]] = {}
        self._count = 0
        self._taken = 0
        self._taken_bytes = 0
        self.size = 0
        """Bytes of the bodies of all that wait."""
        self._takers: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        """Messages that wait."""
        return self._count

    def put(self, deliveries: Iterable[pb.Delivery]) -> None:
        """Adds messages, and wakes the waiters."""
        added = list(deliveries)
        size = sum(map(body_size, added))
        with self._lock:
            self._waiting.extend(added)
            self._count += len(added)
            self.size += size
        self.wake()

    def take(self, limit: int) -> list[pb.Delivery]:
        """Takes up to so many messages, without waiting; from any thread."""
        taken: list[pb.Delivery] = []
        with self._lock:
            waiting = self._waiting
            doubt = False
            while waiting and len(taken) < limit and not doubt:
                doubt = self._in_doubt(waiting[0])
                if not doubt:
                    taken.append(waiting.popleft())
            enough = self._took(taken)
        self._tell(enough, doubt)
        return taken

    def take_in_turn(self) -> pb.Delivery | None:
        """Takes the next message whose message group has no other one being handled, without waiting.

        Skipped ones are kept for ``turn_over()``, so that one slow group does not block the others.
        """
        with self._lock:
            taken = None
            doubt = False
            while self._waiting and taken is None:
                doubt = self._in_doubt(self._waiting[0])
                if doubt:
                    break
                following = self._waiting.popleft()
                group = _group_of(following)
                if group is not None and group in self._aside:
                    self._aside[group].append(following)
                    continue
                if group is not None:
                    self._aside[group] = deque()
                taken = following
            enough = taken is not None and self._took([taken])
        self._tell(enough, doubt)
        return taken

    def turn_over(self, delivery: pb.Delivery) -> pb.Delivery | None:
        """Ends the turn of a message from take_in_turn or turn_over; returns the next one of its group."""
        group = _group_of(delivery)
        if group is None:
            return None
        following, enough, doubt = None, False, False
        with self._lock:
            behind = self._aside.get(group)
            if behind and not (doubt := self._in_doubt(behind[0])):
                following = behind.popleft()
                enough = self._took([following])
            else:
                # While in doubt they wait with the others.
                self._waiting.extendleft(reversed(self._aside.pop(group, deque())))
        self._tell(enough, doubt)
        return following

    async def wait(self) -> None:
        """Waits for the next wake-up: a message arrived, or the subscription ended."""
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.add(taker)
        try:
            await taker
        finally:
            self._takers.discard(taker)

    def wake(self) -> None:
        """Wakes all waiters."""
        for taker in self._takers:
            if not taker.done():
                taker.set_result(None)

    def drop(self, is_lost: Callable[[pb.Delivery], bool]) -> int:
        """Removes messages that this consumer has lost, as if they had been taken; returns their number."""
        with self._lock:
            before = self._count
            self._waiting = deque(delivery for delivery in self._waiting if not is_lost(delivery))
            for group, behind in self._aside.items():
                self._aside[group] = deque(delivery for delivery in behind if not is_lost(delivery))
            left = [self._waiting, *self._aside.values()]
            self._count = sum(map(len, left))
            dropped = before - self._count
            if dropped:
                self.size = sum(body_size(delivery) for part in left for delivery in part)
        if dropped:
            self._on_taken()
        return dropped

    def handles(self) -> set[str]:
        """Receipt handles of all waiting messages."""
        with self._lock:
            return {delivery.receipt_handle for part in (self._waiting, *self._aside.values()) for delivery in part}

    def clear(self) -> None:
        """Drops all waiting messages."""
        with self._lock:
            self._waiting.clear()
            self._aside.clear()
            self._count = self.size = 0

    def _tell(self, enough: bool, doubt: bool) -> None:
        if enough:
            self._on_taken()
        if doubt:
            self._on_doubt()

    def _took(self, taken: Sequence[pb.Delivery]) -> bool:
        """Counts taken messages; returns whether to grant the broker new credits now."""
        size = sum(map(body_size, taken))
        self._count -= len(taken)
        self.size -= size
        self._taken += len(taken)
        self._taken_bytes += size
        enough = self._taken >= self._chunk or self._taken_bytes >= self._chunk_bytes
        if enough:
            self._taken = self._taken_bytes = 0
        return enough


def body_size(delivery: pb.Delivery) -> int:
    """Bytes of a message's body."""
    return len(delivery.message.body)


def _group_of(delivery: pb.Delivery) -> tuple[str, str] | None:
    group = delivery.message.message_group
    return (delivery.message.topic, group) if group else None
