"""Reading a table by the fastest available reader."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.spark.failures import shown_in_one_line
from halfmq_pipeline.tables import by_connectorx, by_jdbc, by_sqlite
from halfmq_pipeline.tables.database import Database
from halfmq_pipeline.tables.selection import Selection, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from halfmq_pipeline.tables.selection import Column

__all__ = ["READERS", "columns_of", "read_table"]

READERS = ("auto", "jdbc", "connectorx", "pymysql")
"""Values of ``reader``."""


def read_table(
    spark: SparkSession,
    url: str,
    query_or_table: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    split_by: str | None = None,
    pieces: int | None = None,
    reader: str = "auto",
) -> DataFrame:
    """Reads a table of MySQL, MariaDB or SQLite, the same rows and types by every reader.

    Integers become bigint (unsigned BIGINT decimal(20,0)), FLOAT and DOUBLE double, DECIMAL decimal, DATE date,
    DATETIME and TIMESTAMP timestamp, texts, TIME and JSON string, BINARY and BLOB binary. A DATETIME is interpreted as
    UTC. Invalid dates, such as 0000-00-00, are null.

    Args:
        spark: The session.
        url: ``mysql://user:password@host:port/database``, also with ``mysql+pymysql:`` and ``mariadb:``; or
            ``sqlite:///file``.
        query_or_table: Name of a table, or a SELECT.
        columns: Only these columns, in this order; None: all.
        where: Condition in the database's own SQL; None: all rows.
        split_by: Integer column whose ranges are read in parallel; None: the primary key, if it is one integer column,
            otherwise all rows are read in one piece.
        pieces: Number of ranges; None: the number of Spark's parallel tasks.
        reader: ``jdbc`` (needs a driver of MySQL or MariaDB on Spark's class path), ``connectorx`` or ``pymysql``;
            ``auto``: the first available one. SQLite has its own reader.

    Raises:
        ConfigurationError: An argument is invalid, or the database refuses the query.
    """
    database = Database.parse(url)
    if reader not in READERS:
        msg = f"reader {reader!r} must be one of {', '.join(READERS)}"
        raise ConfigurationError(msg, field="reader")
    if pieces is not None and pieces < 1:
        msg = f"pieces must be 1 or more, not {pieces}"
        raise ConfigurationError(msg, field="pieces")
    inquiry = _inquiry(database)
    selection = Selection.of(query_or_table, where)
    selection = replace(selection, columns=inquiry.columns_of(database, selection))
    split_by = _split_by(selection, split_by)
    conditions = ["1 = 1"]
    wanted = pieces or spark.sparkContext.defaultParallelism
    if split_by is not None and wanted > 1:
        conditions = ranges(split_by, *inquiry.value_bounds(database, selection, split_by), wanted)
    if columns is not None:
        selection = selection.only(columns)
    if database.kind == "sqlite":
        return selection.arrived(_load(spark, database, selection, conditions, by_sqlite.read))
    driver = by_jdbc.driver_class(spark) if reader in {"auto", "jdbc"} and not database.ssl_ca else None
    if driver is not None:
        return selection.arrived(by_jdbc.load(spark, database, selection, conditions, driver))
    return selection.arrived(_load(spark, database, selection, conditions, _python_reader(database, reader)))


def columns_of(url: str, query_or_table: str) -> dict[str, Column]:
    """The columns of a table or a query, by name.

    Raises:
        ConfigurationError: The database refuses the query.
    """
    database = Database.parse(url)
    selection = Selection.of(query_or_table, None)
    return {column.name: column for column in _inquiry(database).columns_of(database, selection)}


def _inquiry(database: Database) -> _Inquiry:
    """The module for columns and bounds."""
    if database.kind == "sqlite":
        return by_sqlite
    # Imported only for a database of this kind.
    from halfmq_pipeline.tables import by_pymysql  # noqa: PLC0415

    return by_pymysql


class _Inquiry(Protocol):
    def columns_of(self, database: Database, selection: Selection) -> tuple[Column, ...]: ...

    def value_bounds(
        self, database: Database, selection: Selection, split_by: str
    ) -> tuple[int | None, int | None]: ...


def _split_by(selection: Selection, wanted: str | None) -> str | None:
    if wanted is None:
        return next((column.name for column in selection.columns if column.integer and column.key), None)
    (column,) = selection.only([wanted]).columns
    if not column.integer:
        msg = f"split_by {wanted!r} is not an integer column"
        raise ConfigurationError(msg, field="split_by")
    return wanted


def _python_reader(database: Database, reader: str) -> Callable[..., Iterator[pa.RecordBatch]]:
    if reader == "jdbc":
        reason = (
            "ssl_ca is for PyMySQL" if database.ssl_ca else "no driver of MySQL or MariaDB is on Spark's class path"
        )
        msg = f"reader 'jdbc' cannot be used: {reason}; give it one (--conf spark.jars=FILE)"
        raise ConfigurationError(msg, field="reader")
    there = find_spec("connectorx") is not None
    if reader == "connectorx" and (database.ssl_ca or not there):
        reason = "ssl_ca is for PyMySQL" if there else "it is not installed: pip install connectorx"
        msg = f"reader 'connectorx' cannot be used: {reason}"
        raise ConfigurationError(msg, field="reader")
    if there and reader in {"auto", "connectorx"} and not database.ssl_ca:
        return by_connectorx.read
    from halfmq_pipeline.tables import by_pymysql  # noqa: PLC0415

    return by_pymysql.read


def _load(
    spark: SparkSession,
    database: Database,
    selection: Selection,
    pieces: Sequence[str],
    read: Callable[[Database, Selection, str], Iterator[pa.RecordBatch]],
) -> DataFrame:
    """The rows in their transport form, one task per piece."""

    def read_pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with shown_in_one_line():
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from read(database, selection, pieces[number])

    return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(read_pieces, selection.carried_ddl())
