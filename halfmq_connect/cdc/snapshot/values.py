"""Values that a query returns, in the form in which the log tells them; and the order of keys."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from halfmq_connect.cdc.binlog.values import geometry, vector
from halfmq_connect.cdc.database import quoted
from halfmq_connect.cdc.errors import WrongSetting

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfmq_connect.cdc.database import Source
    from halfmq_connect.cdc.tables import DescribedColumn, DescribedTable

__all__ = ["KeyOrder", "expression", "from_query", "ordered_key", "to_query"]

_INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}


def expression(column: DescribedColumn) -> str:
    """How a column is selected, so that nothing of it is lost."""
    name = quoted(column.name)
    if column.kind == "float":  # As text it has six digits.
        return f"CAST({name} AS DOUBLE)"
    return f"{name} + 0" if column.kind == "bit" else name


def from_query(column: DescribedColumn) -> Callable[[Any], Any]:  # noqa: PLR0911 - a table of types
    """Converts what a connection without conversions returns: text, or bytes of binary columns."""
    kind = column.kind
    if kind in _INTEGERS:
        return int
    if kind in {"float", "double"}:
        return float
    if kind in _BINARY:
        return lambda value: base64.b64encode(_raw(value)).decode()
    if kind == "datetime":
        return lambda value: str(value).replace(" ", "T")
    if kind == "timestamp":
        return lambda value: str(value).replace(" ", "T") + "Z"
    if kind == "set":
        return lambda value: value.split(",") if value else []
    if column.type == "geometry":
        return lambda value: geometry(_raw(value))
    if kind == "vector":
        return lambda value: vector(_raw(value))
    return lambda value: value.decode() if isinstance(value, bytes) else value


def _raw(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


_BY_NUMBER = {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}
_BY_TEXT = {"date", "datetime", "timestamp"}
_BY_COLLATION = {"char", "varchar"}


def ordered_key(table: DescribedTable) -> None:
    """Refuses a primary key whose order is not known here.

    Raises:
        WrongSetting: It has a column of such a type.
    """
    for column in table.key_columns():
        if column.kind not in _BY_NUMBER | _BY_TEXT | _BY_COLLATION | {"decimal", "binary", "varbinary"}:
            msg = (
                f"the primary key of {table.name} has {column.name}, a {column.kind}, in whose order a table cannot"
                " be copied in pieces; set snapshot = false for it"
            )
            raise WrongSetting(msg, field="table.snapshot")


def to_query(column: DescribedColumn, value: Any) -> Any:
    """A key's value for a statement."""
    if column.kind in {"binary", "varbinary"}:
        return base64.b64decode(value)
    if column.kind in {"datetime", "timestamp"}:
        return value.rstrip("Z").replace("T", " ")
    return value


class KeyOrder:
    """The order of a table's primary key; the server compares texts, by their collation."""

    def __init__(self, source: Source, table: DescribedTable) -> None:
        """Takes the server and the table."""
        self._source = source
        self._columns = table.key_columns()

    def is_after(self, one: list[Any], other: list[Any]) -> bool:
        """Whether a key comes after another one."""
        for column, left, right in zip(self._columns, one, other, strict=True):
            if left == right:
                continue
            order = self._compare(column, left, right)
            if order:
                return order > 0
        return False

    def _compare(self, column: DescribedColumn, left: Any, right: Any) -> int:
        if column.kind in _BY_COLLATION:
            text = f"CONVERT(%s USING {_word(column.charset)}) COLLATE {_word(column.collation)}"
            return int(self._source.ask(f"SELECT STRCMP({text}, {text})", (left, right))[0][0])
        if column.kind == "decimal":
            left, right = Decimal(left), Decimal(right)
        elif column.kind in {"binary", "varbinary"}:
            left, right = base64.b64decode(left), base64.b64decode(right)
        return int(left > right) - int(left < right)


def _word(name: str) -> str:
    if not name.replace("_", "").isalnum():
        msg = f"{name!r} is no name of a character set or a collation"
        raise WrongSetting(msg, field="table")
    return name
