"""Values as literals of SQL, for MySQL and MariaDB.

Every stored type has one exact literal form, and rendering them in one pass costs a third of the driver's general
escaping. Sessions run without NO_BACKSLASH_ESCAPES (their sql_mode is set when they connect), which the string form
relies on.
"""

from __future__ import annotations

from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any

from pymysql.converters import escape_string

from broker.storage.engine.statements import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.storage.engine.statements import Row


def _bytes_literal(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _text_literal(value: str) -> str:
    return f"'{escape_string(value)}'"


_FEW_ROWS = 8
_ROWS_AT_ONCE = 256
"""Rows whose text is held beside the statement that they become part of."""
_LONGEST_KEPT = 4096
"""Characters of a statement whose pieces are kept: longer ones, with places for many keys, differ each time."""

_LITERALS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "NULL",
    int: int.__repr__,
    bytes: _bytes_literal,
    str: _text_literal,
}


def _other_literal(value: Any) -> str:
    if isinstance(value, int):
        return repr(int(value))
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def literal(value: Any) -> str:
    """The SQL literal of a stored value: None, int, bytes or str (enums of int count as int)."""
    return _LITERALS.get(type(value), _other_literal)(value)


def _render_row(row: Row) -> str:
    # Most values are None and whole numbers, which need no call here.
    return "(" + ",".join(["NULL" if v is None else repr(v) if type(v) is int else literal(v) for v in row]) + ")"


def render_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Rows as `(literal,literal,...)`: by columns, whose values are of one type mostly, or the same in all rows."""
    if len(rows) < _FEW_ROWS:
        yield from map(_render_row, rows)
        return
    for chunk in chunks(rows, _ROWS_AT_ONCE):
        columns = map(_rendered, zip(*chunk, strict=True))
        yield from [f"({text})" for text in map(",".join, zip(*columns, strict=True))]


def _rendered(column: Sequence[Any]) -> Sequence[str]:
    first = column[0]
    if column.count(first) == len(column):
        return [literal(first)] * len(column)
    types = set(map(type, column))
    if types == {int}:
        return list(map(repr, column))
    if types == {bytes}:
        return [f"x'{value.hex()}'" for value in column]
    return list(map(literal, column))


def _split(sql: str) -> tuple[str, ...]:
    # Most pieces are equal, such as the commas of a list: they are kept once.
    return tuple(map(intern, sql.split("?")))


_split_before = lru_cache(maxsize=512)(_split)


def _pieces(sql: str) -> tuple[str, ...]:
    return _split_before(sql) if len(sql) <= _LONGEST_KEPT else _split(sql)


def render(sql: str, values: Row) -> str:
    """A statement with its `?` replaced by literals."""
    pieces = _pieces(sql)
    if len(pieces) != len(values) + 1:
        raise ValueError(f"{len(pieces) - 1} places, {len(values)} values: {sql}")
    parts = [pieces[0]]
    for value, piece in zip(values, pieces[1:], strict=True):
        parts.append(literal(value))
        parts.append(piece)
    return "".join(parts)
