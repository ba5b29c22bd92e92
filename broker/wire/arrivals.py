"""Requests on their way in: how many bytes of them there may be, how long they may take, and how they are unpacked.

gRPC takes in a message before anybody here sees of it, up to the largest that is allowed, and tells neither its size
nor how much of it is there. So what takes longer than a moment to arrive counts as the largest, and what takes too long
is ended. What arrived is unpacked here and not by gRPC, which would unpack everything at once and then ask.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from broker.errors import Overloaded
from broker.wire.budget import RETRY_AFTER
from broker.wire.status import refusal_of

if TYPE_CHECKING:
    from broker.errors import BrokerError
    from broker.wire.budget import Budget
    from broker.wire.status import Refusal


@dataclass(slots=True, eq=False)
class _Arrival:
    context: Any
    counted: bool = True
    rounds: int = 0
    size: int = 0
    ended: BrokerError | None = None


class Arrivals:
    """Requests that are not here as a whole."""

    def __init__(
        self, budget: Budget, largest: int, *, pause: float = 0.05, slow: int = 5, fair: int = 100, last: int = 600
    ) -> None:
        """Takes what they share, and their bounds.

        Args:
            budget: what slow ones take their largest size of; half of it at most, so that others have room.
            largest: bytes of the largest request.
            pause: seconds from one look to the next; what arrives meanwhile is not looked at.
            slow: looks after which a request is slow. Not a time, which also passes while this process stands still.
            fair: looks after which a slow request has to make room for another one.
            last: looks after which a request is ended.
        """
        self._budget = budget
        self._largest = largest
        self._pause = pause
        self._slow, self._fair, self._last = slow, fair, last
        self._under_way: dict[_Arrival, None] = {}
        self._slow_ones: dict[_Arrival, None] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def next(self, context: Any, *, counted: bool = True) -> bytes | None:
        """The next request of a call, as it came over the wire; None at their end.

        Args:
            context: the call's.
            counted: whether it may take of the budget while it is on its way.

        Raises:
            Overloaded: it took too long.
        """
        arrival = _Arrival(context, counted)
        self._under_way[arrival] = None
        if self._looking is None:
            self._look_again()
        try:
            raw = await context.read()
        finally:
            del self._under_way[arrival]
            if arrival.size:
                del self._slow_ones[arrival]
                self._budget.give_back(arrival.size)
        if arrival.ended is not None:
            # It came while it was being refused. Its client may have heard that already, and repeats it as new.
            raise arrival.ended
        return None if raw is grpc.aio.EOF else raw

    def _look(self) -> None:
        for arrival in list(self._under_way):
            arrival.rounds += 1
            if arrival.rounds == self._last:
                self._end(arrival, _too_long(self._pause * self._last))
            elif arrival.counted and arrival.rounds >= self._slow and not arrival.size:
                self._count(arrival)
        self._look_again()

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(self._pause, self._look) if self._under_way else None

    def _count(self, arrival: _Arrival) -> None:
        """Takes what a slow request may have, instead of the one that took longest where there is no room."""
        slow = self._slow_ones
        oldest = next(iter(slow), None)
        try:
            if (len(slow) + 1) * self._largest > self._budget.most // 2:
                raise Overloaded(
                    f"{len(slow)} requests take their time to arrive here, and no more are waited for; come back a"
                    " little later, or go to another broker.",
                    retry_after=RETRY_AFTER,
                )
            self._budget.take(self._largest)
        except Overloaded as error:
            if oldest is None or oldest.rounds < self._fair:
                arrival.counted = False
                self._end(arrival, error)
                return
            self._end(oldest, _too_slow(self._pause * self._fair))
            del slow[oldest]
            arrival.size, oldest.size, oldest.counted = oldest.size, 0, False
        else:
            arrival.size = self._largest
        slow[arrival] = None

    def _end(self, arrival: _Arrival, error: BrokerError) -> None:
        arrival.ended = error
        task = asyncio.get_running_loop().create_task(_end(arrival.context, refusal_of(error)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _too_long(seconds: float) -> BrokerError:
    return Overloaded(f"The request did not arrive within {seconds:g} s.", retry_after=RETRY_AFTER)


def _too_slow(seconds: float) -> BrokerError:
    return Overloaded(
        f"The request did not arrive within {seconds:g} s, and others wait; come back a little later.",
        retry_after=RETRY_AFTER,
    )


async def _end(context: Any, refusal: Refusal) -> None:
    """Ends a call from beside it: its own task then finds it ended."""
    try:
        await context.abort(refusal.code, refusal.text, refusal.metadata)
    except grpc.aio.AbortError as ended:
        # It knows of this frame, which knows of the call, which knows of it: nothing of that would ever be freed.
        ended.__traceback__ = None
    except (grpc.aio.UsageError, grpc.aio.InternalError):
        # It arrived, was ended already, or its client has gone.
        pass
