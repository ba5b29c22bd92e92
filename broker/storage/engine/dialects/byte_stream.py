"""The bytes of a connection, for a thread, or for a greenlet on the event loop."""

from __future__ import annotations

import select
import ssl
import time
from typing import TYPE_CHECKING

from broker.storage.engine import greenlets

if TYPE_CHECKING:
    import asyncio
    import socket

    from broker.storage.engine.greenlets import Greenlet

READ_AT_ONCE = 256 * 1024
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ByteStream:
    """A socket with a buffer for what was received; for one user at a time."""

    def __init__(self, own: socket.socket) -> None:
        """Takes a connected socket, TLS included, and makes it non-blocking; the caller closes it."""
        own.setblocking(False)
        self._own = own
        self._space = memoryview(bytearray(READ_AT_ONCE))
        self._buffer = b""
        self._at = 0
        # An answer cannot have come yet: waiting at once is cheaper than an attempt that fails.
        self._asked = False
        self._since_pause = 0
        self._wait = _Wait(own)

    def read(self, size: int, timeout: float | None) -> bytes:
        """The next bytes; fewer if the peer has closed the connection.

        Args:
            size: number of bytes.
            timeout: seconds without any bytes.

        Raises:
            OSError: the connection is lost; TimeoutError: nothing came in time.
        """
        if self._at + size > len(self._buffer):
            self._fill(size, timeout)
        end = self._at + size
        taken = self._buffer if end - self._at == len(self._buffer) else self._buffer[self._at : end]
        self._at = end
        if end >= len(self._buffer):
            self.close()  # An answer may be large, and the next one is far.
        return taken

    def peek(self, timeout: float | None) -> bytes:
        """What is in the buffer, after a wait if that is nothing. Raises as `read`."""
        if self._at >= len(self._buffer):
            self._fill(1, timeout)
        return self._buffer[self._at :] if self._at else self._buffer

    def write(self, data: bytes, timeout: float | None) -> None:
        """Sends all bytes, within so many seconds.

        Raises:
            OSError: the connection is lost; TimeoutError: not all could be sent in time.
        """
        if self._wait.left:
            raise ConnectionAbortedError("an event loop ended while the answer to an earlier statement was awaited")
        rest = memoryview(data)
        until = None
        while rest:
            try:
                rest = rest[self._own.send(rest) :]
            except _LATER as error:
                now = time.monotonic()
                if until is None and timeout is not None:
                    until = now + timeout
                left = None if until is None else max(until - now, 0.0)
                self._wait.until_ready(left, writing=not isinstance(error, ssl.SSLWantReadError))
        self._asked = True

    def close(self) -> None:
        """Drops what is in the buffer."""
        self._buffer, self._at = b"", 0

    def _fill(self, size: int, timeout: float | None) -> None:
        """Receives until the buffer holds so many bytes, or the connection has ended."""
        parts = [self._buffer[self._at :]]
        self.close()
        missing = size - len(parts[0])
        # Of what is large, not more than that, so that it need not be cut.
        while missing > 0 and (part := self._receive(timeout, missing if size > READ_AT_ONCE else READ_AT_ONCE)):
            parts.append(part)
            missing -= len(part)
        self._buffer = b"".join(parts)

    def _receive(self, timeout: float | None, most: int) -> bytes:
        if self._since_pause > READ_AT_ONCE:
            # A long answer keeps nobody else from the event loop.
            self._since_pause = 0
            greenlets.pause(0)
        if self._asked:
            self._asked = False
            if not (isinstance(self._own, ssl.SSLSocket) and self._own.pending()):
                self._wait_to_read(timeout)
        while True:
            try:
                received = self._own.recv_into(self._space, min(most, READ_AT_ONCE))
            except _LATER as error:
                self._wait_to_read(timeout, writing=isinstance(error, ssl.SSLWantWriteError))
            else:
                self._since_pause += received
                return bytes(self._space[:received])

    def _wait_to_read(self, timeout: float | None, *, writing: bool = False) -> None:
        self._since_pause = 0
        self._wait.until_ready(timeout, writing=writing)


class _Wait:
    """Waits for a socket, in a thread or in a greenlet."""

    def __init__(self, own: socket.socket) -> None:
        self._own = own
        self._watched = _Watched(own)
        self._waiting: Greenlet | None = None
        self._writing = False
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left(self) -> bool:
        """Whether somebody waits, and waits forever if that is not now: its event loop has ended."""
        return self._waiting is not None

    def until_ready(self, timeout: float | None, *, writing: bool) -> None:
        """Returns when the socket can be read, or written.

        Raises:
            TimeoutError: it could not within this many seconds.
        """
        here = greenlets.current()
        if here is None:
            poll = select.poll()
            poll.register(self._own, select.POLLOUT if writing else select.POLLIN)
            ready = bool(poll.poll(None if timeout is None else timeout * 1000))
        else:
            ready = self._in_greenlet(here, timeout, writing=writing)
        if not ready:
            raise TimeoutError("timed out")

    def _in_greenlet(self, here: Greenlet, timeout: float | None, *, writing: bool) -> bool:
        loop = here.loop
        self._waiting, self._writing = here, writing
        (loop.add_writer if writing else loop.add_reader)(self._watched, self._resume, here, True)
        if self._loop is not loop:
            self._loop, self._timer = loop, None
        self._until = float("inf") if timeout is None else loop.time() + timeout
        # One timer for many waits, set again when it has come: nearly all waits end long before.
        if timeout is not None and (self._timer is None or self._timer.when() > self._until):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._until, self._give_up, loop)
        return bool(here.wait())

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiting is None or self._until == float("inf"):
            return
        if loop.time() < self._until:
            self._timer = loop.call_at(self._until, self._give_up, loop)
        else:
            self._resume(self._waiting, False)

    def _resume(self, waiting: Greenlet, ready: bool) -> None:
        self._waiting = None
        (waiting.loop.remove_writer if self._writing else waiting.loop.remove_reader)(self._watched)
        waiting.switch(ready)


class _Watched:
    """A socket for the event loop, which writes its text into an error that is dropped: that of a socket is long."""

    __slots__ = ("fileno",)

    def __init__(self, own: socket.socket) -> None:
        self.fileno = own.fileno

    def __repr__(self) -> str:
        return "a connection's socket"
