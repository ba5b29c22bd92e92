"""Rows of tables as bytes, with the columns' names.

A head, then each row: the length of its JSON, in which bytes are replaced by their length, that JSON, and the bytes.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_LENGTH = struct.Struct(">I")
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def pack(columns: str, rows: Sequence[Sequence[Any]]) -> bytes:
    """Rows of None, whole numbers, texts and bytes; `columns` are their names, separated by commas."""
    return joined(columns, [packed(row) for row in rows])


def joined(columns: str, rows: Sequence[bytes]) -> bytes:
    """As `pack`, of rows that are packed."""
    return b"".join([_piece(columns), *rows])


def packed(row: Sequence[Any]) -> bytes:
    """One row."""
    contents = [value for value in row if type(value) is bytes]
    plain = [[len(value)] if type(value) is bytes else value for value in row]
    return b"".join([_piece(plain), *contents])


def _piece(value: object) -> bytes:
    text = _encode(value).encode()
    return _LENGTH.pack(len(text)) + text


def unpack(content: bytes) -> tuple[str, list[tuple[Any, ...]]]:
    """The columns and the rows."""
    columns, place = _read(content, 0)
    rows = []
    while place < len(content):
        plain, place = _read(content, place)
        row = []
        for value in plain:
            if isinstance(value, list):
                row.append(content[place : place + value[0]])
                place += value[0]
            else:
                row.append(value)
        rows.append(tuple(row))
    return columns, rows


def _read(content: bytes, place: int) -> tuple[Any, int]:
    (length,) = _LENGTH.unpack_from(content, place)
    start = place + _LENGTH.size
    return json.loads(content[start : start + length]), start + length
