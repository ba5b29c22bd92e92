"""Tables of business databases: the same rows and types, whichever reader carries them."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.tables import read_table
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from support.databases import Kind

COLUMNS = {
    "id": ("BIGINT PRIMARY KEY", "bigint"),
    "number": ("BIGINT UNSIGNED", "decimal(20,0)"),
    "uuid": ("BINARY(16)", "binary"),
    "name": ("VARCHAR(50) CHARACTER SET utf8mb4", "string"),
    "latin": ("VARCHAR(50) CHARACTER SET latin1", "string"),
    "amount": ("DECIMAL(20,4)", "decimal(20,4)"),
    "made": ("DATETIME(6)", "timestamp"),
    "changed": ("TIMESTAMP(6) NULL", "timestamp"),
    "due": ("DATE", "date"),
    "paid": ("TINYINT(1)", "bigint"),
    "weight": ("DOUBLE", "double"),
    "flags": ("BIT(3)", "bigint"),
    "state": ("ENUM('new', 'sent')", "string"),
    "photo": ("BLOB", "binary"),
    "note": ("TEXT", "string"),
    "more": ("JSON", "string"),
}
FULL = {
    "id": -1,
    "number": Decimal(2**64 - 1),
    "uuid": bytes(range(240, 256)),
    "name": "Grüße 🍎 \"a\" 'b' `c` 100%",
    "latin": "é",
    "amount": Decimal("-1234567890123456.7891"),
    "made": dt.datetime(2026, 3, 29, 2, 30, 0, 123456),  # noqa: DTZ001 - Spark gives times of the session's zone, UTC
    "changed": dt.datetime(2026, 3, 29, 2, 30, 0, 654321),  # noqa: DTZ001
    "due": dt.date(2026, 2, 28),
    "paid": 7,
    "weight": 0.1,
    "flags": 5,
    "state": "sent",
    "photo": b"\x00\xff",
    "note": "",
    "more": '{"a": [1]}',
}
EMPTY = dict.fromkeys(COLUMNS) | {"id": 2**62}


@pytest.fixture(params=["mariadb", "mysql"])
def shop(request: pytest.FixtureRequest, fresh_database: Callable[[Kind], str]) -> str:
    """A database with a table of two rows, and one of a thousand."""
    url = fresh_database(request.param)
    with connect(url, autocommit=True, init_command="SET time_zone = '+00:00'") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE TABLE `or``ders` ({', '.join(f'{n} {kind}' for n, (kind, _) in COLUMNS.items())})")
        marks = ", ".join(["%s"] * len(COLUMNS))
        cursor.executemany(f"INSERT INTO `or``ders` VALUES ({marks})", [list(FULL.values()), list(EMPTY.values())])
        cursor.execute("CREATE TABLE many (id INT UNSIGNED PRIMARY KEY, part INT)")
        cursor.executemany("INSERT INTO many VALUES (%s, %s)", [(n, n % 7 or None) for n in range(0, 3000, 3)])
    return url


@pytest.mark.usefixtures("jdbc")
def test_every_reader_gives_the_same(spark: SparkSession, shop: str, capsys: pytest.CaptureFixture[str]) -> None:
    password = f":{urlsplit(shop).password}@"
    for reader in ("jdbc", "connectorx", "pymysql"):
        frame = read_table(spark, shop, "SELECT * FROM `or``ders`", reader=reader)
        assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
            name: kind for name, (_, kind) in COLUMNS.items()
        }
        rows = [row.asDict() for row in frame.orderBy("id").collect()]
        assert rows[0]["more"].replace(" ", "") == '{"a":[1]}'
        assert rows == [FULL | {"more": rows[0]["more"]}, EMPTY], reader
        frame.explain("extended")
        assert password not in capsys.readouterr().out
        # Quotes and signs of percent reach the database as they are, and so do names.
        found = read_table(
            spark, shop, "SELECT id, name FROM `or``ders`", where="name LIKE '%\"a\" ''b''%100\\%'", reader=reader
        )
        assert found.columns == ["id", "name"]
        assert [row.id for row in found.collect()] == [-1]
        assert rows_of(read_table(spark, shop, "many", reader=reader, pieces=5)) == list(range(0, 3000, 3))
        split = read_table(
            spark, shop, "many", columns=["id"], where="id < 1500", split_by="part", pieces=3, reader=reader
        )
        assert split.columns == ["id"]
        assert rows_of(split) == list(range(0, 1500, 3))
        assert rows_of(read_table(spark, shop, "many", where="id < 0", reader=reader)) == []


def rows_of(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def test_what_is_refused_is_one_line_without_the_password(spark: SparkSession, shop: str) -> None:
    for url, query, options, words in (
        (shop, "SELECT nothing FROM many", {}, "cannot be read: Unknown column 'nothing'"),
        (shop.replace(":halfmq@", ":wrong-secret@"), "many", {}, "Access denied"),
        (shop, "many", {"split_by": "none"}, "there is no column 'none'; the columns are id, part"),
        (shop, "SELECT 'a' AS text", {"split_by": "text"}, "split_by 'text' is not an integer column"),
    ):
        with pytest.raises(ConfigurationError, match=words) as refused:
            read_table(spark, url, query, **options)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)


def test_sqlite(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "shop of mine.db"
    with closing(sqlite3.connect(file)) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, price REAL, photo BLOB, mixed)")
        shop.execute("INSERT INTO orders VALUES (1, 'Grüße 🍎', 2, x'00ff', 1), (5, NULL, NULL, NULL, 'a')")
    url = f"sqlite:///{file}"
    frame = read_table(spark, url, "orders", split_by="id", pieces=2)
    assert frame.schema.simpleString() == "struct<id:bigint,name:string,price:double,photo:binary,mixed:string>"
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [
        (1, "Grüße 🍎", 2.0, b"\x00\xff", "1"),
        (5, None, None, None, "a"),
    ]
    with pytest.raises(ConfigurationError, match="no such table: nothing"):
        read_table(spark, url, "nothing")
