"""Tables as the server describes them: which of them are published, their columns and their keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfmq_connect.cdc.binlog.table_map import versioned
from halfmq_connect.cdc.database import Source, quoted
from halfmq_connect.cdc.errors import CdcError, Interrupted, WrongSetting

if TYPE_CHECKING:
    from halfmq_connect.cdc.config import DatabaseSettings
    from halfmq_connect.cdc.messages import TableChoice
    from halfmq_connect.cdc.positions import Position

__all__ = ["DescribedColumn", "DescribedTable", "described", "gone"]

_WIDTH = re.compile(r"^(tinyint|smallint|mediumint|int|bigint|year)\(\d+\)")
_GEOMETRIES = {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}
_GEOMETRIES |= {"geomcollection", "geometry"}
_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
_UNREADABLE = {"uuid", "inet4", "inet6"}
_NO_TABLE = {1049, 1146}
_LOCKED = 1205


@dataclass(frozen=True, slots=True)
class DescribedColumn:
    """A column: its name, its type in a word and in full, and its text's character set and collation."""

    name: str
    kind: str
    type: str
    charset: str
    collation: str


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table: its names, its columns, and the indexes of its primary key's columns among them."""

    database: str
    table: str
    columns: tuple[DescribedColumn, ...]
    key: tuple[int, ...]

    @property
    def name(self) -> str:
        """Database and table."""
        return f"{self.database}.{self.table}"

    def key_columns(self) -> list[DescribedColumn]:
        """The columns of the primary key."""
        return [self.columns[index] for index in self.key]


def described(source: Source, choice: TableChoice) -> list[DescribedTable]:
    """The tables that are published and there.

    Raises:
        WrongSetting: One of them has no primary key, or a column that the log does not tell exactly, or it is
            system-versioned.
    """
    marks = ", ".join(["%s"] * len(_SYSTEM))
    names = source.ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE',"
        f" 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN ({marks}) ORDER BY 1, 2",
        _SYSTEM,
    )
    found = []
    for database, table, kind in names:
        if choice.wants(database, table):
            if kind == "SYSTEM VERSIONED":
                field = "outbox.table" if choice.is_outbox(database, table) else "table.match"
                raise WrongSetting(versioned(f"{database}.{table}"), field=field)
            found.append(describe(source, database, table))
            _check(found[-1], choice)
    return found


def describe(source: Source, database: str, table: str) -> DescribedTable:
    """One table."""
    columns = source.ask(
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(CHARACTER_SET_NAME, ''), COALESCE(COLLATION_NAME, '')"
        " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
        (database, table),
    )
    listed = tuple(
        DescribedColumn(name, str(kind).lower(), _type(_text(full)), charset, collation)
        for name, kind, full, charset, collation in columns
    )
    key = source.ask(
        "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        " AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX",
        (database, table),
    )
    places = {column.name: index for index, column in enumerate(listed)}
    return DescribedTable(database, table, listed, tuple(places[name] for (name,) in key))


def gone(settings: DatabaseSettings, host: str, names: list[str]) -> tuple[set[str], Position]:
    """Which of these tables, `database.table`, a server does not have, and a position behind all changes of them.

    A server tells that there is no table only to those who may read it: one that may not be read counts as there.

    Raises:
        Interrupted: The server has no answer now.
    """
    source = Source(settings, host)  # Another thread asks by the session's own.
    try:
        source.ask("SET SESSION lock_wait_timeout = 1")
        listed = source.ask("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES")
        there = {f"{database}.{table}" for database, table in listed}
        found = {name for name in names if name not in there and _is_gone(source, name)}
        return found, source.executed()  # Who changed them has ended: they were dropped behind that.
    finally:
        source.close()


def _is_gone(source: Source, name: str) -> bool:
    """Whether there is no such table, wherever the name of its database ends."""
    parts = name.split(".")
    return all(_lacks(source, ".".join(parts[:index]), ".".join(parts[index:])) for index in range(1, len(parts)))


def _lacks(source: Source, database: str, table: str) -> bool:
    try:
        source.ask(f"SELECT 1 FROM {quoted(database, table)} LIMIT 0")
    except CdcError as error:
        code = error.__cause__.args[0] if error.__cause__ is not None and error.__cause__.args else 0
        if isinstance(error, Interrupted) and code != _LOCKED:
            raise
        return code in _NO_TABLE
    return False


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _type(full: str) -> str:
    """The type as table maps tell it: without the width of display."""
    text = full.partition(" zerofill")[0]
    text = _WIDTH.sub(r"\1", text)
    text = re.sub(r"^(float|double)\([\d,]+\)", r"\1", text)
    return "geometry" if text.partition(" ")[0] in _GEOMETRIES else text


def _check(table: DescribedTable, choice: TableChoice) -> None:
    if not table.key:
        msg = f"{table.name} has no primary key, by which its rows are told apart: add one, or exclude the table"
        raise WrongSetting(msg, field="table.match")
    how = choice.of(table.database, table.table)
    if how is None:
        return
    names = {column.name for column in table.columns}
    exact = "*" not in how.match
    for place, wanted in (("columns", how.columns), ("exclude_columns", how.exclude_columns)):
        if exact and (missing := set(wanted) - names):
            raise WrongSetting(f"{table.name} has no column {', '.join(sorted(missing))}", field=f"table.{place}")
    kept = set(how.columns or names) - set(how.exclude_columns)
    for column in table.columns:
        if "COMPRESSED" in column.type:
            msg = f"{table.name}.{column.name} is compressed, which is not read: make it a plain column"
            raise WrongSetting(msg, field="table.match")
        if column.kind in _UNREADABLE and column.name in kept | {each.name for each in table.key_columns()}:
            msg = (
                f"{table.name}.{column.name} is of type {column.kind}, which the log does not tell exactly: exclude it"
            )
            raise WrongSetting(msg, field="table.exclude_columns")
