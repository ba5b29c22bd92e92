"""Reading MySQL and MariaDB by PyMySQL: the columns, and rows if no faster reader is available."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pymysql
from pymysql.constants import FIELD_TYPE, FLAG
from pymysql.cursors import SSCursor

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.tables.selection import Column, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfmq_pipeline.tables.database import Database
    from halfmq_pipeline.tables.selection import Carrier, Selection

__all__ = ["columns_of", "read", "value_bounds"]

ROWS_AT_A_TIME = 10_000
_PATIENCE = 3600
"""Seconds that the server waits for Spark to read rows."""

_INTEGERS = {FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.YEAR}
_DECIMALS = {FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL}
_AS_TEXT = "CAST({} AS CHAR)"
# The selected expression, its transport form, and Spark's conversion.
_FORMS: dict[int, tuple[str, Carrier, str | None]] = {
    FIELD_TYPE.BIT: ("CAST({} + 0 AS SIGNED)", "bigint", None),
    FIELD_TYPE.FLOAT: ("{} + 0e0", "double", None),
    FIELD_TYPE.DOUBLE: ("{} + 0e0", "double", None),
    FIELD_TYPE.DATE: (_AS_TEXT, "string", "try_cast({} AS date)"),
    FIELD_TYPE.NEWDATE: (_AS_TEXT, "string", "try_cast({} AS date)"),
    FIELD_TYPE.TIME: (_AS_TEXT, "string", None),
    FIELD_TYPE.JSON: (_AS_TEXT, "string", None),
    # It has no time zone: it is interpreted as UTC, whatever the session's zone.
    FIELD_TYPE.DATETIME: (_AS_TEXT, "string", "try_cast(concat({}, '+00:00') AS timestamp)"),
    # As seconds since 1970, because readers differ in the time zone of their sessions.
    FIELD_TYPE.TIMESTAMP: (
        "CAST(NULLIF(UNIX_TIMESTAMP({}), 0) AS CHAR)",
        "string",
        "timestamp_micros(CAST(CAST({} AS decimal(26,6)) * 1000000 AS bigint))",
    ),
}
_TIMES: dict[int, Literal["wall", "instant"]] = {
    FIELD_TYPE.DATE: "wall",
    FIELD_TYPE.NEWDATE: "wall",
    FIELD_TYPE.DATETIME: "wall",
    FIELD_TYPE.TIMESTAMP: "instant",
}
_BINARY_CHARSET = 63
_LONGEST_DECIMAL = 38


@contextmanager
def _connected(database: Database) -> Iterator[Any]:
    try:
        with closing(
            pymysql.connect(
                host=database.host,
                port=database.port,
                user=database.user,
                password=database.password,
                database=database.name,
                charset="utf8mb4",
                ssl_ca=database.ssl_ca,
                ssl_verify_cert=bool(database.ssl_ca),
                init_command=f"SET time_zone = '+00:00', net_write_timeout = {_PATIENCE}",
            )
        ) as connection:
            yield connection
    except pymysql.err.MySQLError as error:
        msg = f"{database} cannot be read: {database.without_password(error.args[-1] if error.args else error)}"
        raise ConfigurationError(msg, field="database") from None


def columns_of(database: Database, selection: Selection) -> tuple[Column, ...]:
    """The columns of a selection.

    Raises:
        ConfigurationError: The database cannot be reached, or refuses the statement.
    """
    with _connected(database) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(selection.head())
        fields = cursor._result.fields
    keys = [field.name for field in fields if field.flags & FLAG.PRI_KEY]
    return tuple(_column(field, alone=keys == [field.name]) for field in fields)


def _column(field: Any, *, alone: bool) -> Column:
    kind, unsigned = field.type_code, bool(field.flags & FLAG.UNSIGNED)
    integer = kind in _INTEGERS or kind == FIELD_TYPE.LONGLONG
    form: tuple[str, Carrier, str | None]
    if kind in _DECIMALS or (kind == FIELD_TYPE.LONGLONG and unsigned):
        digits = field.length - (field.scale > 0) - (kind in _DECIMALS and not unsigned)
        own = f"try_cast({{}} AS decimal({digits},{field.scale}))" if digits <= _LONGEST_DECIMAL else None
        form = _AS_TEXT, "string", own
    elif integer:
        form = "CAST({} AS SIGNED)", "bigint", None
    else:
        form = _FORMS.get(kind, ("{}", "binary" if field.charsetnr == _BINARY_CHARSET else "string", None))
    sql, carrier, own = form
    return Column(
        field.name, sql.format(quoted(field.name)), carrier, own, integer, integer and alone, _TIMES.get(kind)
    )


def value_bounds(database: Database, selection: Selection, split_by: str) -> tuple[int | None, int | None]:
    """The minimum and maximum of a column; None if there are no rows.

    Raises:
        ConfigurationError: The database cannot be reached, refuses the statement, or the column is not an integer.
    """
    with _connected(database) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(selection.bounds(split_by))
        (low, high) = cursor.fetchone()
    return low, high


def read(database: Database, selection: Selection, piece: str) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, streamed from the server.

    Raises:
        ConfigurationError: The database cannot be reached, or refuses the statement.
    """
    schema = selection.carried()
    with _connected(database) as connection, closing(connection.cursor(SSCursor)) as cursor:
        cursor.execute(selection.statement(piece))
        while rows := cursor.fetchmany(ROWS_AT_A_TIME):
            columns = zip(*rows, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
            )
