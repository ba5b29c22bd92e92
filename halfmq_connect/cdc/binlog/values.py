"""Values of columns as row images hold them: each kind of column has a reader, of a value and where it ends.

The values are those of JSON: see docs/ways/cdc.md for the form of each type.
"""

from __future__ import annotations

import base64
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from halfmq_connect.cdc.binlog.json_text import json_text
from halfmq_connect.cdc.binlog.numbers import decimal_size, decimal_text, fraction
from halfmq_connect.cdc.charsets import BINARY
from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Reader", "geometry", "reader_of", "skipper_of"]

Value: TypeAlias = "int | float | str | list[str] | list[float] | dict[str, object] | None"
Reader: TypeAlias = "Callable[[bytes, int], tuple[Value, int]]"

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR = (
    1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13,
)  # fmt: skip
VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2, VECTOR, JSON, NEWDECIMAL, ENUM, SET = (
    15, 16, 17, 18, 19, 242, 245, 246, 247, 248,
)  # fmt: skip
BLOB, STRING, GEOMETRY = 252, 254, 255

INTEGERS = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_float = struct.Struct("<f").unpack_from
_double = struct.Struct("<d").unpack_from


def reader_of(  # noqa: PLR0911 - a table of types
    kind: int, meta: int, *, unsigned: bool, charset: str, codec: str, labels: Sequence[str], name: str
) -> Reader:
    """The reader of a column.

    Args:
        kind: Its type, by the protocol's number.
        meta: What the table map tells of it: a length, a precision, digits.
        unsigned: Whether its numbers have no sign.
        charset: The character set of its texts; `binary`: bytes.
        codec: Python's codec of it.
        labels: The labels of an ENUM or a SET.
        name: The column's name, for errors.

    Raises:
        CannotFollow: The type is not known.
    """
    if kind in INTEGERS:
        return _integer(INTEGERS[kind], signed=not unsigned)
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in {VARCHAR, STRING}:
        text = _bytes_text if charset == BINARY else _decoded(codec)
        if charset == BINARY and kind == STRING:
            return _padded(meta)
        return _prefixed(2 if meta > 255 else 1, text)
    if kind == BLOB:
        return _prefixed(meta, _bytes_text if charset == BINARY else _decoded(codec))
    if kind in _PREFIXED:
        return _prefixed(meta, _PREFIXED[kind])
    if kind in _TIMED:
        return _TIMED[kind](meta)
    if kind == NEWDECIMAL:
        return _decimal(meta >> 8, meta & 0xFF)
    if kind == BIT:
        return _bits((meta & 0xFF) * 8 + (meta >> 8))
    if kind == ENUM:
        return _enum(meta, labels)
    if kind == SET:
        return _set(meta, labels)
    raise _unknown(kind, name)


def skipper_of(kind: int, meta: int, *, name: str) -> Reader:
    """The reader of a column that is left out: it tells where a value ends, and makes nothing of it.

    Args:
        kind: Its type, by the protocol's number.
        meta: What the table map tells of it.
        name: The column's name, for errors.

    Raises:
        CannotFollow: The type is not known.
    """
    prefix = meta if kind == BLOB or kind in _PREFIXED else 0
    if kind in {VARCHAR, STRING}:
        prefix = 2 if meta > 255 else 1
    if prefix:
        return lambda data, at: (None, at + prefix + int.from_bytes(data[at : at + prefix], "little"))
    size = _size(kind, meta)
    if not size:
        raise _unknown(kind, name)
    return lambda data, at: (None, at + size)


def _size(kind: int, meta: int) -> int:
    """Bytes of a type whose values have all the same size; 0: it is not known."""
    if kind in _TIMED_SIZES:
        return _TIMED_SIZES[kind] + (meta + 1) // 2
    if kind == NEWDECIMAL:
        return decimal_size(meta >> 8, meta & 0xFF)
    if kind == BIT:
        return ((meta & 0xFF) * 8 + (meta >> 8) + 7) // 8
    if kind in {ENUM, SET}:
        return meta
    return INTEGERS.get(kind) or _FIXED_SIZES.get(kind, 0)


def _unknown(kind: int, name: str) -> CannotFollow:
    return CannotFollow(f"the column {name} has a type that is not known here, {kind}; exclude the column's table")


def _integer(size: int, *, signed: bool) -> Reader:
    codes = {1: "b", 2: "h", 4: "i", 8: "q"}
    if size in codes:
        code = codes[size] if signed else codes[size].upper()
        unpack = struct.Struct(f"<{code}").unpack_from
        return lambda data, at: (unpack(data, at)[0], at + size)
    return lambda data, at: (int.from_bytes(data[at : at + size], "little", signed=signed), at + size)


def _prefixed(size: int, convert: Callable[[bytes], Value]) -> Reader:
    if size == 1:

        def read_short(data: bytes, at: int) -> tuple[Value, int]:
            end = at + 1 + data[at]
            return convert(data[at + 1 : end]), end

        return read_short

    def read(data: bytes, at: int) -> tuple[Value, int]:
        start = at + size
        end = start + int.from_bytes(data[at:start], "little")
        return convert(data[start:end]), end

    return read


def _bytes_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _decoded(codec: str) -> Callable[[bytes], str]:
    if codec == "utf_8":
        return bytes.decode
    return lambda raw: raw.decode(codec)


def _padded(length: int) -> Reader:
    """BINARY(n): zeros at the end are not written."""
    size = 2 if length > 255 else 1
    return _prefixed(size, lambda raw: _bytes_text(raw.ljust(length, b"\0")))


def geometry(raw: bytes) -> dict[str, object]:
    """A geometry: its reference system, and its well-known binary."""
    return {"srid": int.from_bytes(raw[:4], "little"), "wkb": _bytes_text(raw[4:])}


def vector(raw: bytes) -> list[float]:
    """A vector of 32-bit numbers."""
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def _decimal(precision: int, scale: int) -> Reader:
    size = decimal_size(precision, scale)
    return lambda data, at: (decimal_text(data[at : at + size], precision, scale), at + size)


def _bits(count: int) -> Reader:
    size = (count + 7) // 8
    return lambda data, at: (int.from_bytes(data[at : at + size], "big"), at + size)


def _enum(size: int, labels: Sequence[str]) -> Reader:
    texts = ["", *labels]  # 0 stands for a label that was not valid.
    return lambda data, at: (texts[int.from_bytes(data[at : at + size], "little")], at + size)


def _set(size: int, labels: Sequence[str]) -> Reader:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        bits = int.from_bytes(data[at : at + size], "little")
        return [label for index, label in enumerate(labels) if bits >> index & 1], at + size

    return read


def _year(data: bytes, at: int) -> tuple[Value, int]:
    return (data[at] + 1900 if data[at] else 0), at + 1


def _date(data: bytes, at: int) -> tuple[Value, int]:
    value = int.from_bytes(data[at : at + 3], "little")
    return f"{value >> 9:04d}-{value >> 5 & 15:02d}-{value & 31:02d}", at + 3


def _old_datetime(data: bytes, at: int) -> tuple[Value, int]:
    text = f"{int.from_bytes(data[at : at + 8], 'little'):014d}"
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:10]}:{text[10:12]}:{text[12:]}", at + 8


def _old_time(data: bytes, at: int) -> tuple[Value, int]:
    value = int.from_bytes(data[at : at + 3], "little", signed=True)
    text = f"{abs(value):06d}"
    return f"{'-' * (value < 0)}{text[:-4]}:{text[-4:-2]}:{text[-2:]}", at + 3


def _old_timestamp(data: bytes, at: int) -> tuple[Value, int]:
    return _instant(int.from_bytes(data[at : at + 4], "little")) + "Z", at + 4


def _instant(seconds: int) -> str:
    if not seconds:
        return "0000-00-00T00:00:00"
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def _micros(data: bytes, at: int, digits: int) -> int:
    size = (digits + 1) // 2
    return int.from_bytes(data[at : at + size], "big") * 100 ** (3 - size) if size else 0


def _timestamp(digits: int) -> Reader:
    size = 4 + (digits + 1) // 2

    def read(data: bytes, at: int) -> tuple[Value, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        return f"{_instant(seconds)}{fraction(_micros(data, at + 4, digits), digits)}Z", at + size

    return read


def _datetime(digits: int) -> Reader:
    size = 5 + (digits + 1) // 2

    def read(data: bytes, at: int) -> tuple[Value, int]:
        value = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        clock, day = value & 0x1FFFF, value >> 17
        year, month = divmod(day >> 5, 13)
        text = f"{year:04d}-{month:02d}-{day & 31:02d}T{clock >> 12:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        return text + fraction(_micros(data, at + 5, digits), digits), at + size

    return read


def _time(digits: int) -> Reader:
    """Hours, minutes, seconds and the fraction are one number, offset by half of its range."""
    size = 3 + (digits + 1) // 2
    bits = 8 * (size - 3)
    offset = 0x800000 << bits

    def read(data: bytes, at: int) -> tuple[Value, int]:
        value = int.from_bytes(data[at : at + size], "big") - offset
        sign, value = ("-", -value) if value < 0 else ("", value)
        clock, part = value >> bits, value & ((1 << bits) - 1)
        text = f"{sign}{clock >> 12 & 0x3FF:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}"
        return text + fraction(part * 100 ** (3 - bits // 8) if bits else 0, digits), at + size

    return read


_FIXED: dict[int, Reader] = {
    FLOAT: lambda data, at: (_float(data, at)[0], at + 4),
    DOUBLE: lambda data, at: (_double(data, at)[0], at + 8),
    YEAR: _year,
    DATE: _date,
    DATETIME: _old_datetime,
    TIME: _old_time,
    TIMESTAMP: _old_timestamp,
}
_FIXED_SIZES = {FLOAT: 4, DOUBLE: 8, YEAR: 1, DATE: 3, DATETIME: 8, TIME: 3, TIMESTAMP: 4}
_PREFIXED: dict[int, Callable[[bytes], Value]] = {GEOMETRY: geometry, VECTOR: vector, JSON: json_text}
_TIMED = {TIMESTAMP2: _timestamp, DATETIME2: _datetime, TIME2: _time}
_TIMED_SIZES = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
