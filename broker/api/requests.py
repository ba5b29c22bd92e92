"""Requests on their way in: how many bytes of them there may be, how long they may take, and how they are unpacked.

gRPC takes in a message before anybody here sees of it, up to the largest that is allowed, and tells neither its size
nor how much of it is there. So what takes longer than a moment to arrive counts as the largest, and what takes too long
is ended. What arrived is unpacked here and not by gRPC, which would unpack everything at once and then ask.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
from google.protobuf.message import DecodeError

from broker.api.status import refusal_of
from broker.api.weight import NOT_WEIGHED, weight
from broker.errors import BrokerError, InvalidArgument, Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.api.status import Refusal

RETRY_AFTER = 0.2
SMALL = 16 * 1024
"""Bytes of a request that is always taken: health checks, operators' calls, acknowledgements, verdicts."""
_FIELD = "request"
_AT_ONCE = 1024 * 1024
"""Bytes that are unpacked on the event loop; more are unpacked beside it."""
_WEIGHED_AT_ONCE = 256 * 1024
"""Bytes of a request whose fields are counted on the event loop; those of larger ones beside it."""
_GZIP, _DEFLATE = b"\x1f\x8b", 0x78
_EITHER = zlib.MAX_WBITS | 32


class Budget:
    """Bytes of requests that are here or on their way, all together."""

    def __init__(self, most: int) -> None:
        """Takes how many there may be."""
        self.most = most
        self.taken = 0

    def take(self, size: int) -> None:
        """Takes bytes.

        Raises:
            Overloaded: there are too many already; a request that is alone is taken whatever its size.
        """
        if self.taken and self.taken + size > self.most:
            raise Overloaded(
                f"The requests under way here have {self.taken} bytes, and {self.most} are allowed; come back a little"
                " later, or go to another broker.",
                retry_after=RETRY_AFTER,
            )
        self.taken += size

    def give_back(self, size: int) -> None:
        """Gives bytes back."""
        self.taken -= size


class Share:
    """What one call takes of a budget, until it ends."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: Budget) -> None:
        """Takes nothing yet."""
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Takes more.

        Raises:
            Overloaded: there is no room.
        """
        self._budget.take(size)
        self._size += size

    def __enter__(self) -> Self:
        """Takes nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gives all of it back."""
        self._budget.give_back(self._size)
        self._size = 0


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
        """Takes what a slow request may have, in the place of the one that took longest where there is no room."""
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


async def decoded(raw: bytes, deserialize: Callable[[bytes], Any], share: Share, largest: int) -> Any:
    """A request from what came over the wire.

    Raises:
        Overloaded: there is no room for it.
        InvalidArgument: it cannot be unpacked, is too large, has too many items, or is no such request.
    """
    if len(raw) > SMALL:
        share.grow(len(raw))
    if raw[:2] == _GZIP or (raw[:1] == b"\x78" and int.from_bytes(raw[:2], "big") % 31 == 0):
        raw = await _unpacked(raw, share, largest)
    if len(raw) > NOT_WEIGHED:
        share.grow(await _weighed(raw, deserialize))
    try:
        return deserialize(raw)
    except DecodeError:
        raise InvalidArgument("The request cannot be decoded; is it of another protocol?", field=_FIELD) from None


async def _weighed(raw: bytes, deserialize: Any) -> int:
    """What the fields of a request will take; `deserialize` is a method of the request's class."""
    kind = deserialize.__self__.DESCRIPTOR
    return await asyncio.to_thread(weight, raw, kind) if len(raw) > _WEIGHED_AT_ONCE else weight(raw, kind)


async def _unpacked(raw: bytes, share: Share, largest: int) -> bytes:
    """A request as it was before it was compressed by gzip or deflate.

    No message begins like gzip: there is no such type of a field. One may begin like deflate, and is not unpacked then.
    """
    unpacking = zlib.decompressobj(wbits=_EITHER)
    pieces: list[bytes] = []
    size, rest = 0, raw
    try:
        while not unpacking.eof:
            if size >= largest:
                _refuse_size(largest)
            if size < _AT_ONCE:
                piece = unpacking.decompress(rest, _AT_ONCE)
            else:
                piece = await asyncio.to_thread(unpacking.decompress, rest, _AT_ONCE)
            rest = unpacking.unconsumed_tail
            if not piece and not rest and not unpacking.eof:
                raise zlib.error("its end is missing")
            share.grow(len(piece))
            pieces.append(piece)
            size += len(piece)
    except zlib.error as error:
        if raw[0] == _DEFLATE:
            return raw
        raise InvalidArgument(f"The request cannot be unpacked: {error}.", field=_FIELD) from None
    if size > largest:
        _refuse_size(largest)
    return b"".join(pieces)


def _refuse_size(largest: int) -> NoReturn:
    raise InvalidArgument(
        f"The request has more than {largest} bytes when it is unpacked; send it in several.",
        field=_FIELD,
        reason="REQUEST_TOO_LARGE",
    )


async def requests(
    context: Any, arrivals: Arrivals | None, deserialize: Callable[[bytes], Any], budget: Budget, largest: int
) -> AsyncIterator[Any]:
    """The requests of a stream; each takes its share while its reader works on it.

    Where `arrivals` are given, the first one has to come in their time. Nobody can tell of those that follow whether
    they are on their way, or whether the client has nothing to say.
    """
    raw = await (context.read() if arrivals is None else arrivals.next(context, counted=False))
    while raw is not None and raw is not grpc.aio.EOF:
        with Share(budget) as share:
            request = await decoded(raw, deserialize, share, largest)
            del raw
            yield request
            del request
        raw = await context.read()
