"""Incoming requests: limits of their bytes and durations, and their decompression.

gRPC receives a whole message before any code here runs, up to the largest allowed size, and reports neither its size
nor how much has arrived. So a request that takes longer than a moment to arrive counts as the largest, and one that
takes too long is ended. Requests are decompressed here and not by gRPC, which would decompress everything first.
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


class RequestReceiver:
    """Requests that have not arrived completely."""

    def __init__(
        self, budget: Budget, largest: int, *, pause: float = 0.05, slow: int = 5, fair: int = 100, last: int = 600
    ) -> None:
        """Takes the shared budget, and the bounds.

        Args:
            budget: budget from which slow ones take the largest size; at most half of it.
            largest: bytes of the largest request.
            pause: seconds between two rounds; requests that arrive meanwhile are not examined.
            slow: rounds after which a request is slow. Not a time, which also passes while this process is stopped.
            fair: rounds after which a slow request may be displaced by another one.
            last: rounds after which a request is ended.
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
        """The next request of a call, as received; None at the end.

        Args:
            context: of the call.
            counted: whether it may use the budget while it arrives.

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
            # It arrived while it was being refused. Its client may have got the refusal already, and will retry.
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
        """Acquires the budget of a slow request; if there is none, displaces the slowest other one."""
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
    """Ends a call from another task; the call's own task then finds it ended."""
    try:
        await context.abort(refusal.code, refusal.text, refusal.metadata)
    except grpc.aio.AbortError as ended:
        # Breaks a reference cycle of the error, this frame and the call, which would not be freed.
        ended.__traceback__ = None
    except (grpc.aio.UsageError, grpc.aio.InternalError):
        # It arrived, was ended already, or its client disconnected.
        pass
