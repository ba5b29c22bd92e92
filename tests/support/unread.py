"""Calls whose answers are never read: HTTP/2 by hand, with windows that stay closed."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

from support.half_sent import _ACK, _DATA, _HEADERS, _PING, _PREFACE, _SETTINGS, _frame, _literal

if TYPE_CHECKING:
    from types import TracebackType

_INITIAL_WINDOW = 4
_END_HEADERS, _END_STREAM = 4, 1


class Unread:
    """A connection that takes in the headers of answers, and not one byte of what they say.

    Attributes:
        begun: calls whose answer, or refusal, began.
    """

    def __init__(self, endpoint: str, method: str, request: bytes) -> None:
        """Connects."""
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": endpoint,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self._headers = b"".join(_literal(name, value) for name, value in headers.items())
        self._request = b"\0" + struct.pack(">I", len(request)) + request
        self._calls = 0
        self.begun: set[int] = set()
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, 0)))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def call(self, times: int) -> None:
        """Makes calls, a few at a time."""
        for _ in range(times):
            stream = 2 * self._calls + 1
            self._calls += 1
            self._socket.sendall(
                _frame(_HEADERS, _END_HEADERS, stream, self._headers)
                + _frame(_DATA, _END_STREAM, stream, self._request)
            )
            time.sleep(0.01)

    def await_answers(self, count: int, seconds: float) -> None:
        """Waits until so many calls got the beginning of an answer."""
        until = time.monotonic() + seconds
        while len(self.begun) < count:
            assert time.monotonic() < until, f"{len(self.begun)} of {count} calls were answered"
            time.sleep(0.05)

    def _read(self) -> None:
        pending = b""
        try:
            while read := self._socket.recv(1 << 16):
                pending += read
                while len(pending) >= 9 and len(pending) >= 9 + (length := int.from_bytes(pending[:3], "big")):
                    self._take(pending[3], pending[4], int.from_bytes(pending[5:9], "big"), pending[9 : 9 + length])
                    pending = pending[9 + length :]
        except OSError:
            return

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _HEADERS:
            self.begun.add(stream)
        elif kind in {_PING, _SETTINGS} and not flags & _ACK:
            self._socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))

    def __enter__(self) -> Self:
        """Is connected already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hangs up."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()
