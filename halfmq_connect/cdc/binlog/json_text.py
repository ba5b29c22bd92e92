"""MySQL's binary JSON, as JSON text: what `SELECT CAST(document AS CHAR)` would parse to, with all digits."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING

from halfmq_connect.cdc.binlog.numbers import decimal_text, packed_date, packed_time

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["json_text"]

_quoted = json.JSONEncoder(ensure_ascii=False).encode
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS: dict[int, Callable[[bytes, int], object]] = {
    5: lambda data, at: int.from_bytes(data[at : at + 2], "little", signed=True),
    6: lambda data, at: int.from_bytes(data[at : at + 2], "little"),
    7: lambda data, at: int.from_bytes(data[at : at + 4], "little", signed=True),
    8: lambda data, at: int.from_bytes(data[at : at + 4], "little"),
    9: lambda data, at: int.from_bytes(data[at : at + 8], "little", signed=True),
    10: lambda data, at: int.from_bytes(data[at : at + 8], "little"),
    11: lambda data, at: _double(struct.unpack_from("<d", data, at)[0]),
}
_INLINE_SMALL, _INLINE_LARGE = {4, 5, 6}, {4, 5, 6, 7, 8}
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7


def _double(value: float) -> str:
    """All digits, and the exponent as MySQL writes it."""
    digits, mark, exponent = repr(value).partition("e")
    return f"{digits}e{int(exponent)}" if mark else digits


def json_text(data: bytes) -> str:
    """The text of a document; an empty one, which only an old server wrote, is null."""
    return _value(data[0], data, 1) if data else "null"


def _value(kind: int, data: bytes, at: int) -> str:
    if kind <= 3:  # Objects and arrays, each with offsets of two bytes or of four.
        return _container(data, at, is_object=kind < 2, size=4 if kind & 1 else 2)
    if kind == 4:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return str(_NUMBERS[kind](data, at))
    if kind == 12:
        length, at = _length(data, at)
        return _quoted(data[at : at + length].decode())
    if kind == 15:
        length, start = _length(data, at + 1)
        return _opaque(data[at], data[start : start + length])
    msg = f"JSON of an unknown kind, {kind}"
    raise ValueError(msg)


def _container(data: bytes, at: int, *, is_object: bool, size: int) -> str:
    def number(place: int) -> int:
        return int.from_bytes(data[place : place + size], "little")

    count = number(at)
    keys = at + 2 * size
    values = keys + count * (size + 2) if is_object else keys
    inline = _INLINE_LARGE if size == 4 else _INLINE_SMALL
    parts = []
    for index in range(count):
        entry = values + index * (1 + size)
        kind = data[entry]
        text = _value(kind, data, entry + 1 if kind in inline else at + number(entry + 1))
        if is_object:
            key = keys + index * (size + 2)
            start, length = at + number(key), int.from_bytes(data[key + size : key + size + 2], "little")
            text = f"{_quoted(data[start : start + length].decode())}: {text}"
        parts.append(text)
    return f"{{{', '.join(parts)}}}" if is_object else f"[{', '.join(parts)}]"


def _length(data: bytes, at: int) -> tuple[int, int]:
    length = shift = 0
    while True:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return length, at


def _opaque(kind: int, raw: bytes) -> str:
    if kind == _DECIMAL:
        return decimal_text(raw[2:], raw[0], raw[1])
    if kind == _TIME:
        return _quoted(packed_time(int.from_bytes(raw[:8], "little", signed=True)))
    if kind in {_DATE, _DATETIME, _TIMESTAMP}:
        text = packed_date(int.from_bytes(raw[:8], "little", signed=True))
        return _quoted(text.partition(" ")[0] if kind == _DATE else text)
    return _quoted(f"base64:type{kind}:{base64.b64encode(raw).decode()}")
