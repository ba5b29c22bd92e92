"""Table maps: what the log tells of a table before its rows, with `binlog_row_metadata=FULL`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from halfmq_connect.cdc.binlog import values
from halfmq_connect.cdc.charsets import BINARY, width_of
from halfmq_connect.cdc.errors import CannotFollow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from halfmq_connect.cdc.binlog.values import Reader
    from halfmq_connect.cdc.charsets import Charsets

__all__ = ["Column", "LeavesOut", "TableMap", "parse_table_map", "table_name", "versioned"]

LeavesOut: TypeAlias = "Callable[[str, str, Sequence[str], Sequence[int]], Set[str]]"
"""For a database, a table, the names of its columns, and the indexes of its key: the columns that are not read."""

_NUMERIC = {*values.INTEGERS, values.FLOAT, values.DOUBLE, values.NEWDECIMAL, values.YEAR}
_CHARACTER = {values.VARCHAR, values.STRING, values.BLOB, 253}
_SIZED = {values.FLOAT, values.DOUBLE, values.TIMESTAMP2, values.DATETIME2, values.TIME2, values.BLOB, values.GEOMETRY}
_SIZED |= {values.JSON, values.VECTOR, 249, 250, 251}
_WIDE = {values.VARCHAR, values.BIT, values.NEWDECIMAL, values.STRING, values.ENUM, values.SET, 253}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its type as in a table's definition, and the reader of its values."""

    name: str
    type: str
    read: Reader = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as its rows were written.

    Attributes:
        database, table: Its names.
        columns: Its columns, in their order.
        key: Indexes of the primary key's columns; empty: it has none.
        name: Database and table.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Puts the names together once: they are asked for with each row."""
        object.__setattr__(self, "name", f"{self.database}.{self.table}")


class _Bytes:
    """Reads a part of an event."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            msg = f"it ends at byte {len(self.data)}, and has a part up to byte {self.at}"
            raise ValueError(msg)
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        first = self.number(1)
        return first if first < 251 else self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> str:
        return self.take(self.packed()).decode()


def table_name(body: bytes) -> tuple[str, str]:
    """Database and table of a table map, whose body begins after the table's number."""
    source = _Bytes(body, 2)
    database = source.take(source.number(1)).decode()
    source.at += 1
    return database, source.take(source.number(1)).decode()


def parse_table_map(body: bytes, charsets: Charsets, leaves_out: LeavesOut, *, mariadb: bool) -> TableMap:
    """The table of a table map, whose body begins after the table's number.

    Columns that are left out are passed over in its rows: each of their values is None.

    Raises:
        CannotFollow: The names of columns are not there, or a type is not known; or it is system-versioned.
        ValueError, LookupError: It is damaged.
    """
    database, table = table_name(body)
    source = _Bytes(body, 2 + 1 + body[2] + 1)
    source.at += 1 + body[source.at] + 1
    kinds = list(source.take(source.packed()))
    end = source.packed() + source.at
    metas = [_meta(source, kinds, index) for index in range(len(kinds))]
    source.at = end  # Also when a type is not known here.
    source.take((len(kinds) + 7) // 8)
    told = _Told(source, kinds, mariadb=mariadb)
    if len(told.names) != len(kinds):
        msg = (
            f"the log does not name the columns of {database}.{table}: it was written without"
            " binlog_row_metadata=FULL. Set it in the server's configuration, then take a new snapshot"
        )
        raise CannotFollow(msg)
    if any(index >= len(kinds) for index in told.key):
        msg = f"{len(kinds)} columns, and a primary key of the columns {told.key}"
        raise ValueError(msg)
    left_out = leaves_out(database, table, told.names, told.key)
    columns = tuple(
        _column(told, index, kind, metas[index], charsets, f"{database}.{table}", skip=told.names[index] in left_out)
        for index, kind in enumerate(kinds)
    )
    if mariadb and _has_versions(columns, told.key):
        raise CannotFollow(versioned(f"{database}.{table}"))
    return TableMap(database, table, columns, tuple(told.key))


def versioned(table: str) -> str:
    """Why a system-versioned table of MariaDB is not published, and what to do."""
    return (
        f"{table} is system-versioned: the log tells earlier versions of its rows as rows that are inserted. Name the"
        f" other tables, without it; or ALTER TABLE {table} DROP SYSTEM VERSIONING, then take a new snapshot"
        " (--new-snapshot)"
    )


def _has_versions(columns: Sequence[Column], key: Sequence[int]) -> bool:
    """Whether a table has the columns that MariaDB adds, of which no map tells that they are not ordinary."""
    last = len(columns) - 1
    return last in key and [column.name for column in columns[-2:]] == ["row_start", "row_end"]


def _meta(source: _Bytes, kinds: list[int], index: int) -> int:
    """What follows of a column; it also tells real types of CHAR, ENUM and SET apart."""
    kind = kinds[index]
    if kind == values.STRING:
        first, second = source.number(1), source.number(1)
        if first in {values.ENUM, values.SET}:
            kinds[index] = first
            return second
        return (((first << 4) & 0x300) ^ 0x300) + second
    if kind == values.NEWDECIMAL:
        return source.number(1) << 8 | source.number(1)
    if kind == values.BIT:
        return source.number(1) << 8 | source.number(1)
    if kind in _WIDE:
        return source.number(2)
    return source.number(1) if kind in _SIZED else 0


class _Told:
    """The optional part of a table map: fields of a kind, a length and a content."""

    def __init__(self, source: _Bytes, kinds: list[int], *, mariadb: bool) -> None:
        self.names: list[str] = []
        self.key: list[int] = []
        self.unsigned: set[int] = set()
        self.labels: dict[int, list[str]] = {}
        self.collations: dict[int, int] = {}
        character = [i for i, kind in enumerate(kinds) if kind in _CHARACTER]
        if mariadb:
            character = [i for i, kind in enumerate(kinds) if kind in _CHARACTER or kind == values.GEOMETRY]
        listed = [i for i, kind in enumerate(kinds) if kind in {values.ENUM, values.SET}]
        numeric = [i for i, kind in enumerate(kinds) if kind in _NUMERIC]
        while source.at < len(source.data):
            kind, size = source.number(1), source.packed()
            start = source.at
            source.take(size)
            part = _Bytes(source.data[: source.at], start)
            if kind == 1:
                bits = part.take(size)
                self.unsigned = {column for i, column in enumerate(numeric) if bits[i // 8] & 0x80 >> i % 8}
            elif kind in {2, 10}:
                self._default(part, character if kind == 2 else listed)
            elif kind in {3, 11}:
                self.collations |= {column: part.packed() for column in (character if kind == 3 else listed)}
            elif kind == 4:
                self.names = list(_texts(part))
            elif kind in {5, 6}:
                wanted = values.SET if kind == 5 else values.ENUM
                for column in (i for i in listed if kinds[i] == wanted):
                    self.labels[column] = [part.take(part.packed()) for _ in range(part.packed())]  # type: ignore[misc]
            elif kind == 8:
                self.key = list(_numbers(part))
            elif kind == 9:
                self.key = list(_numbers(part))[::2]

    def _default(self, part: _Bytes, columns: list[int]) -> None:
        usual = part.packed()
        others: dict[int, int] = {}
        while part.at < len(part.data):
            index = part.packed()
            others[index] = part.packed()
        self.collations |= {column: others.get(index, usual) for index, column in enumerate(columns)}


def _texts(part: _Bytes) -> list[str]:
    found = []
    while part.at < len(part.data):
        found.append(part.text())
    return found


def _numbers(part: _Bytes) -> list[int]:
    found = []
    while part.at < len(part.data):
        found.append(part.packed())
    return found


def _column(told: _Told, index: int, kind: int, meta: int, charsets: Charsets, table: str, *, skip: bool) -> Column:
    name = told.names[index]
    charset = charsets.name(told.collations[index]) if index in told.collations else BINARY
    codec = "" if charset == BINARY or kind == values.GEOMETRY else charsets.codec(charset)
    labels = [raw.decode(codec or "utf_8") for raw in told.labels.get(index, [])]  # type: ignore[attr-defined]
    unsigned = index in told.unsigned
    if skip:
        read = values.skipper_of(kind, meta, name=f"{table}.{name}")
    else:
        read = values.reader_of(
            kind, meta, unsigned=unsigned, charset=charset, codec=codec, labels=labels, name=f"{table}.{name}"
        )
    return Column(name, _type_text(kind, meta, charset, labels, unsigned=unsigned), read)


_PLAIN = {
    values.TINY: "tinyint", values.SHORT: "smallint", values.INT24: "mediumint", values.LONG: "int",
    values.LONGLONG: "bigint", values.FLOAT: "float", values.DOUBLE: "double", values.YEAR: "year",
    values.DATE: "date", values.DATETIME: "datetime", values.TIMESTAMP: "timestamp", values.TIME: "time",
    values.JSON: "json", values.GEOMETRY: "geometry", values.VECTOR: "vector",
}  # fmt: skip
_TIMED = {values.TIMESTAMP2: "timestamp", values.DATETIME2: "datetime", values.TIME2: "time"}
_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def _type_text(  # noqa: PLR0911 - a table of types
    kind: int, meta: int, charset: str, labels: list[str], *, unsigned: bool
) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind] + (" unsigned" if unsigned and kind != values.YEAR else "")
    if kind in _TIMED:
        return f"{_TIMED[kind]}({meta})" if meta else _TIMED[kind]
    if kind == values.NEWDECIMAL:
        return f"decimal({meta >> 8},{meta & 0xFF})" + (" unsigned" if unsigned else "")
    if kind == values.BIT:
        return f"bit({(meta & 0xFF) * 8 + (meta >> 8)})"
    if kind in {values.ENUM, values.SET}:
        listed = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
        return f"{'enum' if kind == values.ENUM else 'set'}({listed})"
    if kind == values.BLOB:
        return _BLOBS[meta] + ("blob" if charset == BINARY else "text")
    words = ("binary", "varbinary") if charset == BINARY else ("char", "varchar")
    return f"{words[kind == values.VARCHAR]}({meta // width_of(charset)})"
