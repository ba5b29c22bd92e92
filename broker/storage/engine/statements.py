"""Statements and their answers, for table modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Row: TypeAlias = Sequence[Any]

MAX_BOUND_VALUES = 30_000
MAX_UNITED = 100
MAX_GIVEN = 2000


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to be run together with others.

    Attributes:
        sql: with `?` for values and plain names of tables, unless `values` is None.
        values: None if the statement contains its values already, and final table names.
        rows: if set, it is run once for each of them, for dialects with such statements.
        expected: if set, the number of rows that it has to return or change; otherwise Unexpected is raised, and
            nothing behind it is run.
    """

    sql: str
    values: Row | None = ()
    rows: Sequence[Row] = ()
    expected: int | None = None


class Unexpected(Exception):
    """A statement returned or changed another number of rows than expected.

    Attributes:
        statement: the one.
    """

    def __init__(self, statement: Statement) -> None:
        """Takes the statement."""
        super().__init__(statement.sql[:200])
        self.statement = statement


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement: its rows, the number of changed rows, and the generated id."""

    rows: Sequence[tuple[Any, ...]]
    changed: int
    last_id: int


def marks(values: Collection[Any]) -> str:
    """As many `?` as there are values, for IN (...)."""
    return ",".join("?" * len(values))


def selection(sql: str, keys: Sequence[Any], ending: str = "") -> list[Statement]:
    """Statements `sql IN (keys) ending` for any number of keys, as few as possible."""
    return [Statement(f"{sql} IN ({marks(chunk)}){ending}", chunk) for chunk in chunks(keys, MAX_BOUND_VALUES)]


def insertion_of_one(table: str, columns: str, row: Row) -> Statement:
    """A statement that inserts a row; its answer has the generated id."""
    return Statement(f"INSERT INTO {table} ({columns}) VALUES ({marks(row)})", row)


def without_nulls(columns: str, rows: Sequence[Row]) -> tuple[str, Sequence[Row]]:
    """Columns and rows of an INSERT without the columns that are None in all rows: it is their default everywhere.

    A NULL costs a server about as much as another value: with its half of such columns, a half message took a quarter
    longer.
    """
    by_column = list(zip(*rows, strict=True))
    kept = tuple([at for at, column in enumerate(by_column) if column.count(None) < len(rows)])
    if len(kept) in {0, 1, len(by_column)}:
        return columns, rows
    return _some_columns(columns, kept), list(map(itemgetter(*kept), rows))


@lru_cache(maxsize=512)
def _some_columns(columns: str, kept: tuple[int, ...]) -> str:
    names = columns.split(", ")
    return ", ".join([names[at] for at in kept])


def expecting(statements: Sequence[Statement], expected: int) -> list[Statement] | None:
    """These statements, which have to change so many rows together; None if that cannot be left to the database."""
    return [replace(statements[0], expected=expected)] if len(statements) == 1 else None


def rows_of(answers: Iterable[Answer]) -> list[tuple[Any, ...]]:
    """The rows of several answers."""
    return [row for answer in answers for row in answer.rows]


def chunks(keys: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """The keys, in chunks of at most this size."""
    if len(keys) <= size:
        return [keys] if keys else []
    return [keys[start : start + size] for start in range(0, len(keys), size)]
