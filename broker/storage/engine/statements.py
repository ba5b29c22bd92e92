"""Statements and their answers, as table modules write and read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
        values: None where the statement holds its values already, and the names that tables have.
        rows: with these it is run once for each of them, where the dialect makes such statements.
    """

    sql: str
    values: Row | None = ()
    rows: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave: its rows, how many rows it changed, and the number the database made for it."""

    rows: Sequence[tuple[Any, ...]]
    changed: int
    last_id: int


def marks(values: Collection[Any]) -> str:
    """As many `?` as there are values, for IN (...)."""
    return ",".join("?" * len(values))


def selection(sql: str, keys: Sequence[Any], ending: str = "") -> list[Statement]:
    """Statements `sql IN (keys) ending`, as few as can bind any number of keys."""
    return [Statement(f"{sql} IN ({marks(chunk)}){ending}", chunk) for chunk in chunks(keys, MAX_BOUND_VALUES)]


def insertion_of_one(table: str, columns: str, row: Row) -> Statement:
    """A statement that inserts a row; its answer has the number the database gave it."""
    return Statement(f"INSERT INTO {table} ({columns}) VALUES ({marks(row)})", row)


def rows_of(answers: Iterable[Answer]) -> list[tuple[Any, ...]]:
    """The rows of several answers."""
    return [row for answer in answers for row in answer.rows]


def chunks(keys: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """The keys, in pieces of at most this size."""
    if len(keys) <= size:
        return [keys] if keys else []
    return [keys[start : start + size] for start in range(0, len(keys), size)]
