"""One SELECT for all readers.

Readers convert DATETIME, DECIMAL, unsigned numbers or BIT differently: other types or time zones, lost digits. So the
statement itself converts every column to one of four forms that all readers transport unchanged, and Spark converts it
to the column's type afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from consumer_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["Carrier", "Column", "Selection", "ranges"]

Carrier: TypeAlias = Literal["bigint", "double", "string", "binary"]
"""A type, in Spark's terms, that every reader transports unchanged."""

_ARROW = {"bigint": pa.int64(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()}
_TABLE = re.compile(r"\s*(?:(`[^`]+`|\w+)\.)?(`[^`]+`|\w+)\s*")


@dataclass(frozen=True)
class Column:
    """A column and its conversions.

    Attributes:
        name: Its name.
        sql: Its expression in the statement.
        carrier: Its transport form.
        spark: Spark's conversion: an expression with ``{}`` for the column; None: unchanged.
        integer: Whether it can be split into ranges of integers.
        key: Whether it is the whole primary key.
        time: ``wall`` is a date and time without a zone, ``instant`` one that the database shows in the session's zone.
    """

    name: str
    sql: str
    carrier: Carrier
    spark: str | None = None
    integer: bool = False
    key: bool = False
    time: Literal["wall", "instant"] | None = None


@dataclass(frozen=True)
class Selection:
    """A selection.

    Attributes:
        source: The FROM clause: a table, or a query in brackets.
        where: Condition in the database's SQL, or None.
        columns: The columns; empty as long as they are not known.
    """

    source: str
    where: str | None
    columns: tuple[Column, ...] = ()

    @classmethod
    def of(cls, query_or_table: str, where: str | None) -> Selection:
        """Treats a name, with or without its database and backquotes, as a table, and everything else as a query."""
        if match := _TABLE.fullmatch(query_or_table):
            source = ".".join(quoted(name.strip("`")) for name in match.groups() if name)
        else:
            source = f"({query_or_table.strip().rstrip(';')}) AS selected"
        return cls(source, where)

    def only(self, names: Sequence[str]) -> Selection:
        """These columns of it, in this order.

        Raises:
            ConfigurationError: There is no such column.
        """
        known = {column.name: column for column in self.columns}
        for name in names:
            if name not in known:
                msg = f"there is no column {name!r}; the columns are {', '.join(known)}"
                raise ConfigurationError(msg, field="columns")
        return replace(self, columns=tuple(known[name] for name in names))

    def head(self) -> str:
        """A statement that returns no rows, only the columns."""
        return f"SELECT * FROM {self.source} WHERE 1 = 0"

    def bounds(self, split_by: str) -> str:
        """A statement for the minimum and maximum of a column."""
        return f"SELECT MIN({quoted(split_by)}), MAX({quoted(split_by)}) FROM {self.source}{self._where(None)}"

    def statement(self, piece: str | None = None) -> str:
        """The statement for the rows that meet the condition of a piece; None: for all."""
        listed = ", ".join(f"{column.sql} AS {quoted(column.name)}" for column in self.columns)
        return f"SELECT {listed} FROM {self.source}{self._where(piece)}"

    def _where(self, piece: str | None) -> str:
        conditions = [f"({condition})" for condition in (self.where, piece) if condition]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def carried(self) -> pa.Schema:
        """The transport schema, in Arrow."""
        return pa.schema([pa.field(column.name, _ARROW[column.carrier]) for column in self.columns])

    def carried_ddl(self) -> str:
        """The transport schema, in Spark."""
        return ", ".join(f"{quoted(column.name)} {column.carrier}" for column in self.columns)

    def arrived(self, frame: DataFrame) -> DataFrame:
        """Converts the columns to their own types."""
        own = [column.spark or f"CAST({{}} AS {column.carrier})" for column in self.columns]
        names = [quoted(column.name) for column in self.columns]
        return frame.selectExpr(*(f"{each.format(name)} AS {name}" for each, name in zip(own, names, strict=True)))


def quoted(name: str) -> str:
    """A name in backquotes, which MySQL, MariaDB, SQLite and Spark all support."""
    return "`" + name.replace("`", "``") + "`"


def ranges(split_by: str, low: int | None, high: int | None, pieces: int) -> list[str]:
    """Conditions that split the rows into pieces of equal width; rows without a value are in the first."""
    if low is None or high is None or pieces <= 1:
        return ["1 = 1"]
    name = quoted(split_by)
    width = max(1, -(-(high - low + 1) // pieces))
    starts = list(range(low + width, high + 1, width))
    if not starts:
        return ["1 = 1"]
    # Open at both ends: rows inserted meanwhile would otherwise be in no piece.
    middle = [f"{name} >= {start} AND {name} < {end}" for start, end in pairwise(starts)]
    return [f"{name} < {starts[0]} OR {name} IS NULL", *middle, f"{name} >= {starts[-1]}"]
