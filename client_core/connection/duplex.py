"""One bidirectional stream: queued requests are written in order, responses are passed to a callback."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HEARTBEAT", "Duplex"]

HEARTBEAT = 5.0
"""Interval of heartbeats in seconds that brokers are asked for."""
_MISSED = 3
"""Missed heartbeats after which the broker counts as hung."""
_FIRST_ANSWER = 30.0
"""Seconds until the broker's first response; it may have to wait for its database."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Duplex(Generic[RequestT, ResponseT]):
    """A stream call with a queue in front of it.

    gRPC allows one write at a time; with the queue many parts of a client can send without waiting for each other.
    Requests not yet written when the stream breaks are lost with it: the owner tracks what is unanswered.

    A hung broker keeps its connections, and gRPC answers pings for it; so a stream without responses and heartbeats is
    abandoned.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        """Takes ownership of a call; there must be no other reader or writer."""
        self._call = call
        self._outbox: deque[RequestT] = deque()
        self._something_to_write = asyncio.Event()
        self._half_closed = False
        # By counting, not by a clock that also runs while this process is stopped.
        self._quiet_for = 0
        self._missed_at_most = round(_FIRST_ANSWER / HEARTBEAT)

    def put(self, request: RequestT) -> None:
        """Queues a request; ignored after half_close()."""
        if not self._half_closed:
            self._outbox.append(request)
            self._something_to_write.set()

    def half_close(self) -> None:
        """Half-closes the stream after the queued requests have been written."""
        self._half_closed = True
        self._something_to_write.set()

    def cancel(self) -> None:
        """Ends the stream now, both ways."""
        self._call.cancel()

    def expect_heartbeats(self, *, agreed: bool) -> None:
        """Records whether the broker sends heartbeats; one that does not may be silent for any time."""
        self._missed_at_most = _MISSED if agreed else sys.maxsize

    async def run(self, on_response: Callable[[ResponseT], None]) -> None:
        """Writes and reads until the broker ends the stream.

        Args:
            on_response: Called with each response, on the event loop; it must not block.

        Raises:
            grpc.aio.AioRpcError: The stream broke, the broker ended it with an error, or went silent.
        """
        writer = asyncio.create_task(self._write())
        self._watch = asyncio.get_running_loop().call_later(HEARTBEAT, self._look)
        try:
            # Not by read(): it skips received responses once the end of the stream has been received as well.
            async for response in self._call:
                self._quiet_for = 0
                on_response(response)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._quiet_for < self._missed_at_most or (task is not None and task.cancelling()):
                raise
            # The call was cancelled by the watch.
            raise _silent() from None
        finally:
            self._watch.cancel()
            writer.cancel()
            self._call.cancel()
            await asyncio.wait([writer])

    def _look(self) -> None:
        self._quiet_for += 1
        if self._quiet_for >= self._missed_at_most:
            self._call.cancel()
        else:
            self._watch = asyncio.get_running_loop().call_later(HEARTBEAT, self._look)

    async def _write(self) -> None:
        try:
            while self._outbox or not self._half_closed:
                while self._outbox:
                    await self._call.write(self._outbox[0])
                    self._outbox.popleft()
                if not self._half_closed:
                    self._something_to_write.clear()
                    await self._something_to_write.wait()
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream has ended; the reader reports why.
            return


def _silent() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    text = "the broker says nothing any more, though its connection stands: it hangs"
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, text)
