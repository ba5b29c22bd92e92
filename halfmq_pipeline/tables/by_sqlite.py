"""Reading SQLite files: for the embedded database and for demos."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.tables.selection import Column, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_pipeline.tables.database import Database
    from halfmq_pipeline.tables.selection import Carrier, Selection

__all__ = ["columns_of", "read", "value_bounds"]

ROWS_AT_A_TIME = 10_000


@contextmanager
def _opened(database: Database) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{Path(database.name).as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        msg = f"{database} cannot be read: {error}"
        raise ConfigurationError(msg, field="database") from None


def columns_of(database: Database, selection: Selection) -> tuple[Column, ...]:
    """The columns of a selection: SQLite has a type per value, so the values are examined.

    Raises:
        ConfigurationError: The file cannot be read, or SQLite refuses the statement.
    """
    with _opened(database) as connection:
        names = [each[0] for each in connection.execute(selection.head()).description]
        kinds: list[set[str]] = [set() for _ in names]
        listed = ", ".join(f"typeof({quoted(name)})" for name in names)
        for row in connection.execute(f"SELECT DISTINCT {listed} FROM {selection.source}"):
            for kind, found in zip(kinds, row, strict=True):
                kind.add(found)
    return tuple(_column(name, found - {"null"}) for name, found in zip(names, kinds, strict=True))


def _column(name: str, kinds: set[str]) -> Column:
    carriers: dict[frozenset[str], Carrier] = {
        frozenset({"integer"}): "bigint",
        frozenset({"real"}): "double",
        frozenset({"integer", "real"}): "double",
        frozenset({"blob"}): "binary",
    }
    carrier = carriers.get(frozenset(kinds), "string")
    sql = {"string": f"CAST({quoted(name)} AS TEXT)", "double": f"CAST({quoted(name)} AS REAL)"}
    return Column(name, sql.get(carrier, quoted(name)), carrier, integer=carrier == "bigint")


def value_bounds(database: Database, selection: Selection, split_by: str) -> tuple[int | None, int | None]:
    """The minimum and maximum of a column; None if there are no rows.

    Raises:
        ConfigurationError: The file cannot be read, or SQLite refuses the statement.
    """
    with _opened(database) as connection:
        (low, high) = connection.execute(selection.bounds(split_by)).fetchone()
    return low, high


def read(database: Database, selection: Selection, piece: str) -> Iterator[pa.RecordBatch]:
    """The rows of a piece.

    Raises:
        ConfigurationError: The file cannot be read, or SQLite refuses the statement.
    """
    schema = selection.carried()
    with _opened(database) as connection:
        found = connection.execute(selection.statement(piece))
        while rows := found.fetchmany(ROWS_AT_A_TIME):
            columns = zip(*rows, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
            )
