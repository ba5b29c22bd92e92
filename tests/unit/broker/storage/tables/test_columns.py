"""Messages from one row in which the database concatenated the values of each column."""

from __future__ import annotations

import pytest

from broker.domain.topic import Compression
from broker.storage.tables.bodies import pack
from broker.storage.tables.columns import concatenated, log_columns, log_columns_of

ROWS = [
    (7, b"a" * 16, 0, None, '["k"]', None, None, 1, 2, None, b"one"),
    (8, b"b" * 16, 0, "tag", None, "group", '{"a": "1"}', 1, 3, None, b""),
    (10, b"b" * 16, 1, None, None, None, None, 1, 3, None, b"three"),
]
ROW = [
    *(3, b"onethree", b"a" * 16 + b"b" * 32, "7,8,10", "3,0,5", "3,0,5", "0,0,1", "1,1,1", "2,3,3"),
    *(1, "\ntag\n", 1, "\ngroup\n", 1, '["k"],[],[]', 1, '{},{"a": "1"},{}'),
]
COUNT, BODIES, IDS, OFFSETS, SIZES, LENGTHS, POSITIONS, BORN_AT, STORED_AT = range(9)
TAGS, GROUPS, KEYS, PROPERTIES = 10, 12, 14, 16


def test_what_is_selected_is_what_is_taken_apart() -> None:
    selected = concatenated("GROUP_CONCAT({} SEPARATOR {})")
    assert selected.count("GROUP_CONCAT") + selected.count("COUNT(") == len(ROW)
    assert selected.startswith("COUNT(*), GROUP_CONCAT(body SEPARATOR ''), ")
    assert r"COUNT(tag), GROUP_CONCAT(COALESCE(tag, '') SEPARATOR '\n')" in selected


def test_it_is_what_the_rows_are() -> None:
    one, many = log_columns_of("orders", 3, ROW), log_columns("orders", 3, ROWS)
    assert one is not None
    assert (one.topic, one.queue_no, one.bodies, one.transaction_ids) == ("orders", 3, b"onethree", ROW[IDS])
    for name in ("offsets", "sizes", "positions", "born_at", "stored_at", "keys", "properties"):
        assert list(getattr(one, name)) == list(getattr(many, name)), name
    for name in ("tags", "message_groups"):
        assert [text or None for text in getattr(one, name)] == list(getattr(many, name)), name


def test_what_no_message_has_is_left_out() -> None:
    row = list(ROW)
    for column, empty in ((TAGS, "\n\n"), (GROUPS, "\n\n"), (KEYS, "[],[],[]"), (PROPERTIES, "{},{},{}")):
        row[column - 1 : column + 1] = 0, empty
    one = log_columns_of("orders", 3, row)
    assert one is not None
    assert (one.tags, one.message_groups, one.keys, one.properties) == (None, None, None, None)


def test_no_messages() -> None:
    assert log_columns_of("orders", 3, [0, *[None] * 8, *[0, None] * 4]) == log_columns("orders", 3, ())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(BODIES, b"onethre", id="bodies that are cut"),
        pytest.param(IDS, b"a" * 47, id="ids that are cut"),
        pytest.param(OFFSETS, "7,8,", id="numbers that are cut before one"),
        pytest.param(STORED_AT, "2,3", id="numbers that are cut after one"),
        pytest.param(SIZES, "3,0,4", id="sizes that are not the bodies'"),
        pytest.param(LENGTHS, "3,0,4", id="lengths that are not the bodies'"),
        pytest.param(LENGTHS, "3,0", id="lengths that are cut"),
        pytest.param(OFFSETS, "8,7,10", id="another order"),
        pytest.param(OFFSETS, "7,7,10", id="one message twice"),
        pytest.param(TAGS, "\nta\ng\n", id="a line break in a tag"),
        pytest.param(GROUPS, "\ngrou", id="groups that are cut"),
        pytest.param(KEYS, '["k"],[],', id="keys that are cut"),
        pytest.param(PROPERTIES, '{},{"a": "1"}', id="properties that are cut"),
    ],
)
def test_what_cannot_be_told_apart_is_not_guessed(column: int, value: object) -> None:
    row = list(ROW)
    row[column] = value
    assert log_columns_of("orders", 3, row) is None


def test_compressed_bodies_among_others() -> None:
    long = b"three " * 50
    packed = pack(long, Compression.ZSTD)
    row = list(ROW)
    row[BODIES], row[SIZES], row[LENGTHS] = b"one" + packed, "3,0,300", f"3,0,{len(packed)}"
    found = log_columns_of("orders", 3, row)
    assert found is not None
    assert (found.bodies, found.sizes) == (b"one" + long, [3, 0, 300])
    row[BODIES] = b"one" + packed[:-1] + b"?"
    assert log_columns_of("orders", 3, row) is None, "read one by one, up to the broken one"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_the_first_ones(count: int) -> None:
    one = log_columns_of("orders", 3, ROW)
    assert one is not None
    some, expected = one.first(count), log_columns("orders", 3, ROWS[:count])
    assert len(some) == len(expected)
    assert (some.bodies, some.transaction_ids) == (expected.bodies, expected.transaction_ids)
    for name in ("offsets", "sizes", "positions", "born_at", "stored_at"):
        assert list(getattr(some, name)) == list(getattr(expected, name)), name
    assert all(len(each or ()) == min(count, 3) for each in (some.tags, some.keys, some.properties))
