"""One SELECT for all readers.

Readers differ in what they make of DATETIME, DECIMAL, unsigned numbers or BIT: other types or time zones, lost digits.
So the statement itself brings every column into one of four forms that all of them carry unchanged, and Spark makes the
column's own type of it afterwards.
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
"""A type, as Spark calls it, that comes the same through every reader."""

_ARROW = {"bigint": pa.int64(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()}
_TABLE = re.compile(r"\s*(?:(`[^`]+`|\w+)\.)?(`[^`]+`|\w+)\s*")


@dataclass(frozen=True)
class Column:
    """A column and its way.

    Attributes:
        name: Its name.
        sql: What the statement selects for it.
        carrier: The form it travels in.
        spark: What Spark makes of it: an expression with ``{}`` instead of the column; None: what it travels as.
        integer: Whether ranges of it are ranges of whole numbers.
        key: Whether it is also the whole primary key.
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
    """What is read.

    Attributes:
        source: What stands behind FROM: a table, or a query in brackets.
        where: Condition in the database's SQL, or None.
        columns: The columns; empty as long as they are not known.
    """

    source: str
    where: str | None
    columns: tuple[Column, ...] = ()

    @classmethod
    def of(cls, query_or_table: str, where: str | None) -> Selection:
        """Takes a name, with or without its database and backquotes, for a table, and everything else for a query."""
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
        """A statement that gives no rows, only the columns."""
        return f"SELECT * FROM {self.source} WHERE 1 = 0"

    def bounds(self, split_by: str) -> str:
        """A statement that gives the least and the largest value of a column."""
        return f"SELECT MIN({quoted(split_by)}), MAX({quoted(split_by)}) FROM {self.source}{self._where(None)}"

    def statement(self, piece: str | None = None) -> str:
        """The statement for the rows that meet the condition of a piece; None: for all."""
        listed = ", ".join(f"{column.sql} AS {quoted(column.name)}" for column in self.columns)
        return f"SELECT {listed} FROM {self.source}{self._where(piece)}"

    def _where(self, piece: str | None) -> str:
        conditions = [f"({condition})" for condition in (self.where, piece) if condition]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def carried(self) -> pa.Schema:
        """How rows travel, as Arrow has it."""
        return pa.schema([pa.field(column.name, _ARROW[column.carrier]) for column in self.columns])

    def carried_ddl(self) -> str:
        """How rows travel, as Spark has it."""
        return ", ".join(f"{quoted(column.name)} {column.carrier}" for column in self.columns)

    def arrived(self, frame: DataFrame) -> DataFrame:
        """Gives the columns their own types."""
        own = [column.spark or f"CAST({{}} AS {column.carrier})" for column in self.columns]
        names = [quoted(column.name) for column in self.columns]
        return frame.selectExpr(*(f"{each.format(name)} AS {name}" for each, name in zip(own, names, strict=True)))


def quoted(name: str) -> str:
    """A name between backquotes: MySQL, MariaDB, SQLite and Spark all read them."""
    return "`" + name.replace("`", "``") + "`"


def ranges(split_by: str, low: int | None, high: int | None, pieces: int) -> list[str]:
    """Conditions that cut the rows into pieces of equal width; rows without a value are in the first."""
    if low is None or high is None or pieces <= 1:
        return ["1 = 1"]
    name = quoted(split_by)
    width = max(1, -(-(high - low + 1) // pieces))
    starts = list(range(low + width, high + 1, width))
    if not starts:
        return ["1 = 1"]
    # Open at both ends: rows that come meanwhile are nobody's otherwise.
    middle = [f"{name} >= {start} AND {name} < {end}" for start, end in pairwise(starts)]
    return [f"{name} < {starts[0]} OR {name} IS NULL", *middle, f"{name} >= {starts[-1]}"]
