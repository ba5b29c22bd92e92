"""One bidirectional stream: what is put is written in order, what arrives is handed on."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Duplex"]

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Duplex(Generic[RequestT, ResponseT]):
    """A stream call with a queue in front of it.

    gRPC allows one write at a time; the queue lets many parts of a client say something without waiting for each
    other. What was put but not written when the stream breaks is lost with it: the owner knows what is unanswered.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[RequestT, ResponseT]) -> None:
        """Takes a call over that nobody else writes to or reads from."""
        self._call = call
        self._outbox: deque[RequestT] = deque()
        self._something_to_write = asyncio.Event()
        self._half_closed = False

    def put(self, request: RequestT) -> None:
        """Queues a request; ignored after half_close()."""
        if not self._half_closed:
            self._outbox.append(request)
            self._something_to_write.set()

    def half_close(self) -> None:
        """Says that nothing more will be put; what waits is written first."""
        self._half_closed = True
        self._something_to_write.set()

    def cancel(self) -> None:
        """Ends the stream now, both ways."""
        self._call.cancel()

    async def run(self, on_response: Callable[[ResponseT], None]) -> None:
        """Writes and reads until the broker ends the stream.

        Args:
            on_response: Called with each response, on the event loop; it must not block.

        Raises:
            grpc.aio.AioRpcError: The stream broke, or the broker ended it with an error.
        """
        writer = asyncio.create_task(self._write())
        try:
            # Not by read(): it passes over what has arrived once the end has arrived as well.
            async for response in self._call:
                on_response(response)
        finally:
            writer.cancel()
            self._call.cancel()
            await asyncio.wait([writer])

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
            # The stream is over; the reader finds out why and says so.
            return
