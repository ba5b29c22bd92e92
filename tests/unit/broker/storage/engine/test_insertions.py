"""Rows that are inserted: their text, and the columns that are left out."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from broker.storage.engine.literals import literal, render_rows
from broker.storage.engine.statements import without_nulls
from broker.storage.tables.schema import metadata


class Kind(IntEnum):
    FIRST = 1
    SECOND = 2


ROW = (b"\x00'\xff", 7, None, "it's \\ ü", Kind.FIRST, True, -(2**63))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 255, 256, 257, 1000])
@pytest.mark.parametrize(
    "change",
    [
        lambda row, _: row,
        lambda row, number: (row[0] + bytes([number % 256]), number, None, f"{number}", Kind.SECOND, False, number),
        lambda row, number: row if number % 3 else (None, 0, 1, "", Kind.SECOND, False, 2**63),
        lambda row, number: (b"", None, number or None, None, Kind(1 + number % 2), number == 1, 1),
    ],
)
def test_rows_are_rendered_as_their_values_are(count: int, change: Any) -> None:
    rows = [change(ROW, number) for number in range(count)]
    expected = [f"({','.join(map(literal, row))})" for row in rows]
    assert list(render_rows(rows)) == expected


def test_an_unknown_type_is_refused_in_any_number_of_rows() -> None:
    for count in (1, 100):
        with pytest.raises(TypeError, match="no SQL literal for float"):
            list(render_rows([(number, number + 0.5) for number in range(count)]))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, None, None, "x")], ("a, d", [(1, "x")])),
        ([(1, None, 3, None), (1, None, None, 0)], ("a, c, d", [(1, 3, None), (1, None, 0)])),
        ([(1, 2, 3, 4)], ("a, b, c, d", [(1, 2, 3, 4)])),
        ([(0, b"", "", False)], ("a, b, c, d", [(0, b"", "", False)])),
        # An INSERT needs a column, and one value is not a row.
        ([(None, None, None, None)], ("a, b, c, d", [(None, None, None, None)])),
        ([(None, None, 1, None)], ("a, b, c, d", [(None, None, 1, None)])),
        ([], ("a, b, c, d", [])),
    ],
)
def test_columns_without_a_value_are_left_out(rows: list[Any], expected: Any) -> None:
    assert without_nulls("a, b, c, d", rows) == expected


def test_a_column_that_may_be_null_has_no_other_default() -> None:
    """Otherwise a column that is left out would not be NULL."""
    others = [
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if column.nullable and (column.server_default is not None or column.default is not None)
    ]
    assert others == []
