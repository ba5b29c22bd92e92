"""Calls that no gRPC client makes: any bytes in any header, over a bare HTTP/2 connection."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
# HEADER_TABLE_SIZE 0, so that headers of answers are whole, and windows of 2 GB, which are never updated.
_OUR_SETTINGS = b"\x00\x01\x00\x00\x00\x00" + b"\x00\x04\x7f\xff\xff\xff"
_WINDOW = b"\x7f\x00\x00\x00"
LARGEST = 16_000
"""Bytes of the headers of a call, and of its request, which go in one frame each."""
_FIRST_WINDOW = 65_535
PATIENCE = 30.0


@dataclass
class Answer:
    """What a call was answered with.

    Attributes:
        code: gRPC's code; None if the stream was reset.
        text: gRPC's text.
        response: the response, serialized; empty without one.
    """

    code: int | None = None
    text: str = ""
    response: bytes = b""


@dataclass
class _Stream:
    done: asyncio.Future[Answer]
    answer: Answer = field(default_factory=Answer)


class RawCalls:
    """A connection, whose unary calls may be under way side by side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._ended: ConnectionError | None = None
        self._room = _FIRST_WINDOW
        self._more_room = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def to(cls, endpoint: str) -> AsyncIterator[Self]:
        """Connects to `host:port`."""
        host, _, port = endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, _OUR_SETTINGS) + _frame(_WINDOW_UPDATE, 0, 0, _WINDOW))
        made = cls(reader, writer)
        reading = asyncio.create_task(made._read())
        try:
            yield made
        finally:
            reading.cancel()
            writer.close()

    async def call(self, path: str, headers: Iterable[tuple[str, bytes]], request: bytes = b"") -> Answer:
        """Makes a unary call."""
        if self._ended is not None:
            raise self._ended
        fixed = [(":method", b"POST"), (":scheme", b"http"), (":path", path.encode()), (":authority", b"broker")]
        fixed += [("te", b"trailers"), ("content-type", b"application/grpc")]
        block = b"".join(_literal(name, value) for name, value in (*fixed, *headers))
        content = b"\x00" + len(request).to_bytes(4, "big") + request
        assert max(len(block), len(content)) <= LARGEST
        async with asyncio.timeout(PATIENCE):
            while self._room < len(content):
                self._more_room.clear()
                await self._more_room.wait()
        self._room -= len(content)
        number, self._next = self._next, self._next + 2
        stream = self._streams[number] = _Stream(asyncio.get_running_loop().create_future())
        self._writer.write(_frame(_HEADERS, _END_HEADERS, number, block) + _frame(_DATA, _END_STREAM, number, content))
        async with asyncio.timeout(PATIENCE):
            return await stream.done

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                content = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), content)
        except Exception as error:
            self._ended = ConnectionError(f"the connection has ended: {error}")
            for stream in self._streams.values():
                if not stream.done.done():
                    stream.done.set_exception(self._ended)

    def _take(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, content))
        elif kind == _GO_AWAY:
            raise OSError(content[8:].decode(errors="replace"))
        elif kind == _WINDOW_UPDATE and not number:
            self._room += int.from_bytes(content, "big")
            self._more_room.set()
        if (stream := self._streams.get(number)) is None:
            return
        answer = stream.answer
        if kind == _DATA:
            answer.response += content
        elif kind == _HEADERS:
            for name, value in _headers(content):
                if name == b"grpc-status":
                    answer.code = int(value)
                elif name == b"grpc-message":
                    answer.text = unquote_to_bytes(value).decode()
        if kind == _RESET:
            answer.text = f"reset, {int.from_bytes(content, 'big')}"
        if kind == _RESET or (kind in {_DATA, _HEADERS} and flags & _END_STREAM):
            answer.response = answer.response[5:]
            del self._streams[number]
            stream.done.set_result(answer)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def _literal(name: str, value: bytes) -> bytes:
    """A header that is not to be remembered, as in section 6.2.3 of RFC 7541."""
    return b"\x10" + _text(name.encode()) + _text(value)


def _text(content: bytes) -> bytes:
    return _number(len(content)) + content


def _number(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    written, number = bytearray([127]), number - 127
    while number >= 128:
        written.append(number % 128 + 128)
        number //= 128
    written.append(number)
    return bytes(written)


def _headers(block: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of an answer whose names are literal; those of the static table are left out."""
    found, at = [], 0
    while at < len(block):
        first = block[at]
        if first & 0x80 or first == 0x20:
            at += 1
            continue
        index, at = _read_number(block, at, 6 if first & 0x40 else 4)
        name, at = (b"", at) if index else _read_text(block, at)
        value, at = _read_text(block, at)
        found.append((name, value))
    return found


def _read_text(block: bytes, at: int) -> tuple[bytes, int]:
    # In Huffman's code are only headers with bytes, which are not looked at.
    length, at = _read_number(block, at, 7)
    return block[at : at + length], at + length


def _read_number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    number, at, shift = block[at] & most, at + 1, 0
    if number < most:
        return number, at
    while True:
        number += (block[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not block[at - 1] & 0x80:
            return number, at
