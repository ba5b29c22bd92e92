"""Large values that are not published cost no more memory than their bytes; in tables that are not, nothing."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from connect.cdc.sources import Capture, Source, Topic, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 20_000_000
"""More than a packet of the protocol has."""
TABLES = [
    {"match": "shop.files", "topic": "rows", "exclude_columns": ["content"]},
    {"match": "shop.mark", "topic": "rows"},
]


@pytest.fixture(autouse=True)
def room(source: Source) -> Iterator[None]:
    """The server takes such values; and begins another file of its log behind them."""
    ((usual,),) = source.ask("SELECT @@GLOBAL.max_allowed_packet")
    source.run(f"SET GLOBAL max_allowed_packet = {4 * SIZE // 1024 * 1024}")
    yield
    source.run(f"SET GLOBAL max_allowed_packet = {usual}", "DROP DATABASE shop", "FLUSH BINARY LOGS")


@contextmanager
def at_most(share: float) -> Iterator[None]:
    """What runs in it allocates no more than this share of a value beyond what was there before."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak / SIZE < share


def test_of_a_column_that_is_left_out(source: Source, endpoint: str, topic: Topic) -> None:
    """Copied, inserted, changed and deleted; a character beyond the others makes each of a text's four bytes wide."""
    text = f"CONCAT(REPEAT('x', {SIZE - 4}), '😀')"
    source.run(
        "CREATE TABLE shop.files (id INT PRIMARY KEY, content LONGTEXT CHARACTER SET utf8mb4, item VARCHAR(40))",
        "CREATE TABLE shop.mark (id INT PRIMARY KEY)",
        f"INSERT INTO shop.files VALUES (1, {text}, 'copied')",
    )
    with at_most(0.5), Capture(settings(endpoint, source.host, table=TABLES)):
        topic.rows(1)
    source.run(f"INSERT INTO shop.files VALUES (2, {text}, 'inserted')", "DELETE FROM shop.files WHERE id = 2")
    with at_most(1.5), Capture(settings(endpoint, source.host, table=TABLES)):
        topic.rows(3)
    source.run("UPDATE shop.files SET item = 'changed'")
    with at_most(2.5), Capture(settings(endpoint, source.host, table=TABLES)):  # One event has both images.
        found = topic.rows(4)
    assert [(each["op"], each["before"], each["after"]) for each in found] == [
        ("r", None, {"id": 1, "item": "copied"}),
        ("c", None, {"id": 2, "item": "inserted"}),
        ("d", {"id": 2, "item": "inserted"}, None),
        ("u", {"id": 1, "item": "copied"}, {"id": 1, "item": "changed"}),
    ]


def test_of_a_table_that_is_not_published(source: Source, endpoint: str, topic: Topic) -> None:
    source.run(
        "CREATE TABLE shop.aside (id INT PRIMARY KEY, content LONGBLOB)",
        "CREATE TABLE shop.mark (id INT PRIMARY KEY)",
        "CREATE TABLE shop.files (id INT PRIMARY KEY, content INT)",
    )
    Capture(settings(endpoint, source.host, table=TABLES)).stop()
    with source.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop.mark VALUES (1)")
        cursor.execute(f"INSERT INTO shop.aside VALUES (1, REPEAT('x', {SIZE}))")
        cursor.execute("UPDATE shop.aside SET id = 2")
        cursor.execute("INSERT INTO shop.mark VALUES (2)")
        cursor.execute("DELETE FROM shop.aside")
        connection.commit()
    source.run("INSERT INTO shop.mark VALUES (3)")
    with at_most(0.5), Capture(settings(endpoint, source.host, table=TABLES)):
        found = topic.rows(3)
    assert [(each["after"]["id"], each["source"]["row"]) for each in found] == [(1, 0), (2, 1), (3, 0)]
