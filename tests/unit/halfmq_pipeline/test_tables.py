"""Database URLs, statements and their pieces; no database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.tables import Database, TimeColumn
from halfmq_pipeline.tables.selection import Column, Selection, ranges


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://shop:secret@db.example:3307/orders", "mysql://shop@db.example:3307/orders"),
        ("mysql+pymysql://shop:secret@db.example/orders", "mysql://shop@db.example:3306/orders"),
        ("mariadb://shop@db.example/orders?ssl_ca=/ca.pem", "mysql://shop@db.example:3306/orders"),
        ("sqlite:////data/shop.db", "sqlite:////data/shop.db"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    database = Database.parse(url)
    assert str(database) == shown
    assert "secret" not in repr(database)


def test_signs_in_urls() -> None:
    database = Database.parse("mysql://us%40er:p%2Fw%3A%40@host/name")
    assert (database.user, database.password) == ("us@er", "p/w:@")
    assert database.without_password("bad p/w:@\n here") == "bad *** here"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://a:secret@b/c", "databases of the kind 'postgresql' cannot be read"),
        ("mysql://:secret@host/name", "needs a user, a host and a database"),
        ("mysql://user:secret@host", "needs a user, a host and a database"),
        ("mysql://user:secret@host:port/name", "cannot be read"),
        ("mysql://user:secret@host/name?ssl=1", "only ssl_ca is known"),
        ("sqlite://", "names no file"),
        ("orders", "databases of the kind ''"),
    ],
)
def test_urls_that_are_none(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        Database.parse(url)
    assert refused.value.field == "database"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ("orders", "`orders`"),
        (" shop.`my orders` ", "`shop`.`my orders`"),
        ("SELECT 1;", "(SELECT 1) AS selected"),
    ],
)
def test_tables_and_queries(given: str, source: str) -> None:
    assert Selection.of(given, None).head() == f"SELECT * FROM {source} WHERE 1 = 0"


def test_statements() -> None:
    selection = Selection(
        "`orders`", "a OR b", (Column("x", "CAST(`x` AS CHAR)", "string"), Column("y", "`y`", "binary"))
    )
    assert selection.statement("x < 1 OR x IS NULL") == (
        "SELECT CAST(`x` AS CHAR) AS `x`, `y` AS `y` FROM `orders` WHERE (a OR b) AND (x < 1 OR x IS NULL)"
    )
    assert selection.bounds("x") == "SELECT MIN(`x`), MAX(`x`) FROM `orders` WHERE (a OR b)"
    with pytest.raises(ConfigurationError, match="there is no column 'z'; the columns are x, y"):
        selection.only(["z"])


@pytest.mark.parametrize(
    ("low", "high", "pieces", "conditions"),
    [
        (None, None, 4, ["1 = 1"]),
        (5, 5, 4, ["1 = 1"]),
        (1, 10, 1, ["1 = 1"]),
        (0, 9, 3, ["`i` < 4 OR `i` IS NULL", "`i` >= 4 AND `i` < 8", "`i` >= 8"]),
        (-1, 1, 9, ["`i` < 0 OR `i` IS NULL", "`i` >= 0 AND `i` < 1", "`i` >= 1"]),
    ],
)
def test_ranges(low: int | None, high: int | None, pieces: int, conditions: list[str]) -> None:
    assert ranges("i", low, high, pieces) == conditions


LOW, HIGH = datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC), datetime(2026, 1, 31, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "kind", "unit", "condition", "spark"),
    [
        (
            Column("t", "`t`", "string", "x", time="wall"),
            "mysql",
            None,
            "`t` >= TIMESTAMP'2026-01-31 12:00:00.500000' AND `t` < TIMESTAMP'2026-01-31 13:00:00.000000'",
            "try_cast(`t` AS timestamp)",
        ),
        (
            Column("t", "`t`", "string", "x", time="instant"),
            "mysql",
            None,
            "`t` >= FROM_UNIXTIME(1769860800.500000) AND `t` < FROM_UNIXTIME(1769864400.000000)",
            "try_cast(`t` AS timestamp)",
        ),
        (
            Column("t", "`t`", "bigint"),
            "mysql",
            "ms",
            "`t` >= 1769860800500 AND `t` <= 1769864400000",
            "timestamp_micros(CAST(`t` * 1000 AS bigint))",
        ),
        (
            Column("t", "`t`", "string", "try_cast({} AS decimal(20,6))"),
            "mysql",
            "s",
            "`t` >= 1769860800 AND `t` <= 1769864400",
            "timestamp_micros(CAST(`t` * 1000000 AS bigint))",
        ),
        (Column("t", "`t`", "string"), "mysql", None, None, "try_cast(`t` AS timestamp)"),
        (
            Column("t", "`t`", "string"),
            "sqlite",
            None,
            "julianday(`t`) BETWEEN julianday('2026-01-31 11:59:59.500000')"
            " AND julianday('2026-01-31 13:00:01.000000')",
            "try_cast(`t` AS timestamp)",
        ),
    ],
)
def test_times(column: Column, kind: Literal["mysql", "sqlite"], unit: str | None, condition: str, spark: str) -> None:
    time = TimeColumn(column, kind, unit)
    assert time.between(LOW, HIGH) == condition
    assert time.spark == spark


@pytest.mark.parametrize(
    ("column", "unit", "words"),
    [
        (Column("t", "`t`", "bigint"), None, "name its unit: one of s, ms, us"),
        (Column("t", "`t`", "double"), "m", "name its unit"),
        (Column("t", "`t`", "string", "x", time="wall"), "s", "leave it out"),
    ],
)
def test_times_that_are_none(column: Column, unit: str | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        TimeColumn(column, "mysql", unit)
