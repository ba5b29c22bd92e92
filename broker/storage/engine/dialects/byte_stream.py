"""The bytes of a connection, for a thread, or for a greenlet on the event loop."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

from broker.storage.engine import greenlets

if TYPE_CHECKING:
    import socket

READ_AT_ONCE = 256 * 1024
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ByteStream:
    """A socket with a buffer for what was received.

    An operation is tried before it is waited for: what is to be read has often come, and what is to be written nearly
    always fits.
    """

    def __init__(self, own: socket.socket) -> None:
        """Takes a connected socket, TLS included, and makes it non-blocking; the caller closes it."""
        own.setblocking(False)
        self._own = own
        self._space = memoryview(bytearray(READ_AT_ONCE))
        self._buffer = b""
        self._at = 0
        self._since_pause = 0

    def read(self, size: int, timeout: float | None) -> bytes:
        """The next bytes; fewer if the peer has closed the connection.

        Args:
            size: number of bytes.
            timeout: seconds without any bytes.

        Raises:
            OSError: the connection is lost; TimeoutError: nothing came in time.
        """
        end = self._at + size
        if end > len(self._buffer):
            self._fill(size, timeout)
            end = size
        taken = self._buffer[self._at : end]
        self._at = end
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
                greenlets.wait_for_socket(self._own, left, writing=not isinstance(error, ssl.SSLWantReadError))

    def close(self) -> None:
        """Drops the buffer."""
        self._buffer, self._at = b"", 0

    def _fill(self, size: int, timeout: float | None) -> None:
        """Receives until the buffer holds so many bytes, or the connection has ended."""
        parts = [self._buffer[self._at :]]
        missing = size - len(parts[0])
        while missing > 0 and (part := self._receive(timeout)):
            parts.append(part)
            missing -= len(part)
        self._buffer, self._at = b"".join(parts), 0

    def _receive(self, timeout: float | None) -> bytes:
        if self._since_pause > READ_AT_ONCE:
            # A long answer keeps nobody else from the event loop.
            greenlets.pause(0)
            self._since_pause = 0
        while True:
            try:
                received = self._own.recv_into(self._space)
            except _LATER as error:
                greenlets.wait_for_socket(self._own, timeout, writing=isinstance(error, ssl.SSLWantWriteError))
                self._since_pause = 0
            else:
                self._since_pause += received
                return bytes(self._space[:received])
