"""Values as literals of SQL, for MySQL and MariaDB.

Every stored type has one exact literal form, and rendering them in one pass costs a third of the driver's general
escaping. Sessions run without NO_BACKSLASH_ESCAPES (their sql_mode is set when they connect), which the string form
relies on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pymysql.converters import escape_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.statements import Row


def _bytes_literal(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _text_literal(value: str) -> str:
    return f"'{escape_string(value)}'"


_LITERALS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "NULL",
    int: int.__repr__,
    bytes: _bytes_literal,
    str: _text_literal,
}


def literal(value: Any) -> str:
    """The SQL literal of a stored value: None, int, bytes or str (enums of int count as int)."""
    known = _LITERALS.get(type(value))
    if known is not None:
        return known(value)
    if isinstance(value, int):
        return repr(int(value))
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def render_row(row: Row) -> str:
    """A row as `(literal,literal,...)`."""
    # Most values are None and whole numbers, which need no call here.
    return (
        "("
        + ",".join(["NULL" if v is None else repr(v) if type(v) is int else _LITERALS[type(v)](v) for v in row])
        + ")"
    )


@lru_cache(maxsize=512)
def _pieces(sql: str) -> tuple[str, ...]:
    return tuple(sql.split("?"))


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
