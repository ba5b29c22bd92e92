"""What differs between MySQL, MariaDB and SQLite, and nothing else.

Statements are written with `?` for values. SQLite takes them like that. For the servers the values are written into
the statement here: every type we store has one exact literal form, and rendering them in one go costs a third of the
driver's general escaping. Sessions run without NO_BACKSLASH_ESCAPES (engine.py sets sql_mode), which the string form
relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from pymysql.converters import escape_string

Row = Sequence[Any]


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
    """The SQL literal of a value we store: None, int, bytes or str (enums of int count as int)."""
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


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences, as pieces of SQL.

    Attributes:
        name: mysql, mariadb or sqlite.
        inlines_values: values are rendered into the statement (servers) or bound (SQLite).
        for_update: ends a SELECT that locks the rows it returns.
        for_share: ends a SELECT that keeps others from changing the rows it returns, and lets them do the same.
        skip_locked: ends a SELECT that locks rows and passes over those locked by others.
        by_index: behind a table's name in a SELECT: use this index whatever it seems to cost. Statistics of tables
            that fill and empty are always wrong, and a scan that locks would wait for the rows of all others. MariaDB
            heeds it in a locking SELECT by primary key only together with ORDER BY that key. MySQL scans the whole
            index where that has all columns that are asked for: ask for one that it lacks.
        take_offsets: takes offsets of a queue; values: bytes of the messages, how many, the queue. The offset after
            them is the only row it gives (embedded), or the number made by the database (servers).
        keep_existing_column: ends an INSERT that leaves rows alone whose key exists, counting only new rows.
        given: a table of given rows for INSERT ... SELECT. From its name and columns, `name (column, ...)`, and its
            rows, `(...),(...)` with `row` before each: what stands before SELECT, and what stands in FROM.
        row: stands before each row of VALUES.
        joined_to: joins two tables in this order, whatever it seems to cost.
    """

    name: str
    inlines_values: bool
    for_update: str
    for_share: str
    skip_locked: str
    by_index: Callable[[str], str]
    take_offsets: str
    keep_existing_column: Callable[[str], str]
    given: Callable[[str, str], tuple[str, str]]
    row: str
    joined_to: str

    @property
    def by_key(self) -> str:
        """Behind a table's name in a SELECT: reach the rows by primary key."""
        return self.by_index("PRIMARY")

    @property
    def embedded(self) -> bool:
        """Whether the database lives in this process."""
        return not self.inlines_values


def _given_before(table: str, given: str) -> tuple[str, str]:
    return f"WITH {table} AS (VALUES {given}) ", table.partition(" ")[0]


def _given_inside(table: str, given: str) -> tuple[str, str]:
    return "", f"(VALUES {given}) AS {table}"


_OF_QUEUE = "WHERE queue_id = ? AND deleted_at IS NULL"
SERVER_TAKE = (
    f"UPDATE queue SET stored_bytes = stored_bytes + ?, next_offset = LAST_INSERT_ID(next_offset + ?) {_OF_QUEUE}"
)
SQLITE_TAKE = (
    f"UPDATE queue SET stored_bytes = stored_bytes + ?, next_offset = next_offset + ? {_OF_QUEUE} RETURNING next_offset"
)
MYSQL = Dialect(
    name="mysql",
    inlines_values=True,
    for_update=" FOR UPDATE",
    for_share=" LOCK IN SHARE MODE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    by_index=" FORCE INDEX ({})".format,
    take_offsets=SERVER_TAKE,
    keep_existing_column=" ON DUPLICATE KEY UPDATE {0} = {0}".format,
    given=_given_inside,
    row="ROW",
    joined_to="STRAIGHT_JOIN",
)
MARIADB = replace(MYSQL, name="mariadb", given=_given_before, row="")
SQLITE = Dialect(
    name="sqlite",
    inlines_values=False,
    for_update="",
    for_share="",
    skip_locked="",
    by_index=lambda _: "",
    take_offsets=SQLITE_TAKE,
    keep_existing_column=lambda _: " ON CONFLICT DO NOTHING",
    given=_given_before,
    row="",
    joined_to="CROSS JOIN",
)
