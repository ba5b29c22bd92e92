"""Packets of the protocol become events, also where an event has several of them."""

from __future__ import annotations

import io
import struct
from types import SimpleNamespace

import pytest

from halfmq_connect.cdc.binlog import events
from halfmq_connect.cdc.binlog.dump import Dump
from halfmq_connect.cdc.errors import Interrupted

PACKET = 0xFFFFFF
ROWS = 30


def packets(kind: int, body: bytes, checksum: bytes = b"") -> bytes:
    """An event as a server sends it."""
    size = events.HEADER_SIZE + len(body) + len(checksum)
    content = b"\0" + struct.pack("<IBIIIH", 1, kind, 2, size, 3, 4) + body + checksum
    parts = [content[at : at + PACKET] for at in range(0, len(content) + 1, PACKET)]
    return b"".join(len(part).to_bytes(3, "little") + bytes([number % 256]) + part for number, part in enumerate(parts))


def dump(sent: bytes, *, checksum: int = 0, passed_over: bool = False) -> Dump:
    made = Dump.__new__(Dump)
    made._host = "host"
    made._connection = SimpleNamespace(_rfile=io.BytesIO(sent))  # type: ignore[assignment]
    made._checksum = checksum
    made._passes_over = lambda kind, start: passed_over and (kind, start) == (ROWS, b"number")
    return made


SIZES = (1, 64 * 1024, 64 * 1024 + 1, PACKET - 1, PACKET, PACKET + 1, 2 * PACKET, 2 * PACKET + 100)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("checksum", [0, 4])
def test_bodies_of_every_size(size: int, checksum: int) -> None:
    """The size is that of the first packet and those behind it; what follows is read at its place."""
    body = b"number" + bytes(range(256)) * (size // 256 + 1)
    body = body[: max(size - 1 - events.HEADER_SIZE - checksum, 6)]
    sent = packets(ROWS, body, b"C" * checksum) + packets(events.XID, b"last", b"C" * checksum)
    found = iter(dump(sent, checksum=checksum))
    assert next(found) == events.Event(1, ROWS, 2, 3, 4, body)
    assert next(found) == events.Event(1, events.XID, 2, 3, 4, b"last")
    with pytest.raises(Interrupted, match="the server closed it"):
        next(found)


@pytest.mark.parametrize("size", SIZES[2:])
def test_of_a_large_event_that_is_passed_over_only_the_beginning_is_kept(size: int) -> None:
    body = b"number".ljust(size - 1 - events.HEADER_SIZE, b"x")
    found = iter(dump(packets(ROWS, body) + packets(events.XID, b"last"), passed_over=True))
    assert next(found).body == b"number"
    assert next(found).body == b"last"


@pytest.mark.parametrize("size", [10, 70_000, PACKET + 2, PACKET + 10])
def test_a_connection_that_ends_within_an_event(size: int) -> None:
    sent = packets(ROWS, b"number".ljust(2 * PACKET, b"x") if size > 10 else b"number")
    with pytest.raises(Interrupted, match="the server closed it"):
        next(iter(dump(sent[:size])))
