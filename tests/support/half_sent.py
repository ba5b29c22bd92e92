"""Connections that send a part of a request and then nothing more: HTTP/2 by hand, for no client can be made to."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = END_HEADERS = 1
_FRAME = 16_384
_FIRST_WINDOW = 65_535


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header that is not indexed and not packed."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class HalfSent:
    """A call whose request begins, goes on for so many bytes, and never ends; pings are answered all the while.

    Attributes:
        sent: bytes of the request that the server took.
        ended: set when the server has ended the call or the connection.
        status: `grpc-status` of the answer, as far as it can be seen.
    """

    def __init__(self, endpoint: str, method: str, *, announced: int, sending: int) -> None:
        """Connects, and sends in a thread."""
        host, _, port = endpoint.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._left = sending
        self._stream_window = self._window = _FIRST_WINDOW
        self._read = b""
        self.sent = 0
        self.ended = threading.Event()
        self._closing = False
        headers = b"".join(
            _literal(name, value)
            for name, value in {
                ":method": "POST",
                ":scheme": "http",
                ":path": method,
                ":authority": endpoint,
                "te": "trailers",
                "content-type": "application/grpc",
            }.items()
        )
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, 4, 1, headers))
        self._rest = b"\0" + struct.pack(">I", announced)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while not self.ended.is_set() and not self._closing:
                self._send()
                if select.select([self._socket], [], [], 0.05)[0]:
                    self._take()
        self.ended.set()

    def _send(self) -> None:
        while self._left and (room := min(self._window, self._stream_window, _FRAME, self._left)) > 0:
            piece = (self._rest + b"\0" * room)[:room]
            self._rest = self._rest[room:]
            self._socket.sendall(_frame(_DATA, 0, 1, piece))
            self.sent += room
            self._left -= room
            self._window -= room
            self._stream_window -= room

    def _take(self) -> None:
        read = self._socket.recv(1 << 16)
        if not read:
            self.ended.set()
        self._read += read
        while len(self._read) >= 9:
            length = int.from_bytes(self._read[:3], "big")
            if len(self._read) < 9 + length:
                return
            kind, flags, stream = self._read[3], self._read[4], int.from_bytes(self._read[5:9], "big")
            payload, self._read = self._read[9 : 9 + length], self._read[9 + length :]
            if kind == _WINDOW:
                if stream:
                    self._stream_window += int.from_bytes(payload, "big")
                else:
                    self._window += int.from_bytes(payload, "big")
            elif kind == _SETTINGS and not flags & _ACK:
                self._settings(payload)
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind in {_RST, _GOAWAY} or (kind in {_HEADERS, _DATA} and flags & 1):
                self.ended.set()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = struct.unpack(">HI", payload[at : at + 6])
            if name == 4:
                self._stream_window += value - _FIRST_WINDOW
        self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))

    def stuck(self, seconds: float = 60.0) -> None:
        """Waits until all is sent that was to be, or that the server takes, or until it ended the call."""
        until, last = time.monotonic() + seconds, -1
        while self._left and not self.ended.is_set() and last != self.sent and time.monotonic() < until:
            last = self.sent
            time.sleep(0.5)

    def __enter__(self) -> Self:
        """Is connected already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hangs up."""
        self._closing = True
        self._thread.join(10)
        self._socket.close()
