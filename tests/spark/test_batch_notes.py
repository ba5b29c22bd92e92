"""What a database is given of numbered batches: each once, on every database, whoever else tries it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from consumer_sdk import ConfigurationError
from consumer_sdk.spark.sink.batch_notes import CREATE_BATCH_APPLIED, apply_numbered
from support.databases import ALL_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.databases import Kind


@pytest.fixture(params=ALL_KINDS)
def connect(
    request: pytest.FixtureRequest, tmp_path: Path, fresh_database: Callable[[Kind], str]
) -> Callable[..., Any]:
    """Connects to a database with the tables that are needed."""
    if request.param == "sqlite":

        def connect(*, autocommit: bool = False) -> Any:
            return sqlite3.connect(tmp_path / "shop.db", isolation_level=None if autocommit else "DEFERRED", timeout=30)
    else:
        import pymysql
        from sqlalchemy import make_url

        url = make_url(fresh_database(request.param))

        def connect(*, autocommit: bool = False) -> Any:
            return pymysql.connect(
                host=url.host,
                port=url.port or 3306,
                user=url.username,
                password=str(url.password),
                database=url.database,
                autocommit=autocommit,
            )

    with closing(connect()) as shop, closing(shop.cursor()) as cursor:
        cursor.execute(CREATE_BATCH_APPLIED)
        cursor.execute("CREATE TABLE seen (batch INT)")
        shop.commit()
    return connect


def seen(connect: Callable[..., Any]) -> list[int]:
    with closing(connect()) as shop, closing(shop.cursor()) as cursor:
        cursor.execute("SELECT batch FROM seen ORDER BY batch")
        return [row[0] for row in cursor.fetchall()]


def add(number: int) -> Callable[[Any], object]:
    return lambda cursor: cursor.execute(f"INSERT INTO seen VALUES ({number})")


def test_each_batch_is_applied_once(connect: Callable[..., Any]) -> None:
    with closing(connect()) as shop:
        done = [
            apply_numbered(shop, add(number), name="seen", query_id="q", number=number)
            for number in (0, 0, 1, 0, 1, 5, 4, 5, 6)
        ]
        assert apply_numbered(shop, add(100), name="another", query_id="other", number=0)
    assert done == [True, False, True, False, False, True, False, False, True]
    assert seen(connect) == [0, 1, 5, 6, 100]


def test_what_fails_leaves_neither_rows_nor_a_note(connect: Callable[..., Any]) -> None:
    def fail(cursor: Any) -> None:
        add(0)(cursor)
        raise RuntimeError("failed on purpose")

    with closing(connect()) as shop:
        with pytest.raises(RuntimeError, match="on purpose"):
            apply_numbered(shop, fail, name="seen", query_id="q", number=0)
        assert seen(connect) == []
        assert apply_numbered(shop, add(0), name="seen", query_id="q", number=0)
    assert seen(connect) == [0]


def test_one_of_two_that_apply_the_same_batch(connect: Callable[..., Any]) -> None:
    """A driver that nobody knows to be alive still works on the batch while another one repeats it."""
    with closing(connect()) as shop:
        apply_numbered(shop, add(0), name="seen", query_id="q", number=0)
    inside, go_on = threading.Event(), threading.Event()
    done: dict[str, bool] = {}

    def slow(cursor: Any) -> None:
        add(1)(cursor)
        inside.set()
        assert go_on.wait(60)

    def run(name: str, apply: Callable[[Any], object]) -> None:
        with closing(connect()) as shop:
            done[name] = apply_numbered(shop, apply, name="seen", query_id="q", number=1)

    first = threading.Thread(target=run, args=("first", slow))
    first.start()
    assert inside.wait(60)
    second = threading.Thread(target=run, args=("second", add(1)))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    go_on.set()
    first.join()
    second.join()
    assert done == {"first": True, "second": False}
    assert seen(connect) == [0, 1]


def test_a_name_of_another_query(connect: Callable[..., Any]) -> None:
    with closing(connect()) as shop:
        apply_numbered(shop, add(7), name="seen", query_id="old", number=7)
        with pytest.raises(ConfigurationError, match=r"belongs to the query old, which applied batch 7") as refused:
            apply_numbered(shop, add(0), name="seen", query_id="new", number=0)
        assert refused.value.field == "name"
        assert apply_numbered(shop, add(0), name="seen", query_id="new", number=0, take_over=True)
        assert not apply_numbered(shop, add(0), name="seen", query_id="new", number=0, take_over=True)
        with pytest.raises(ConfigurationError, match="belongs to the query new"):
            apply_numbered(shop, add(8), name="seen", query_id="old", number=8)
    assert seen(connect) == [0, 7]


def test_a_connection_that_commits_by_itself_is_refused(connect: Callable[..., Any]) -> None:
    with closing(connect(autocommit=True)) as shop, pytest.raises(ConfigurationError, match="turn autocommit off"):
        apply_numbered(shop, add(0), name="seen", query_id="q", number=0)
    assert seen(connect) == []


def test_parameter_marks_that_nobody_knows() -> None:
    class Wrapped:
        def cursor(self) -> Any:
            raise AssertionError

        commit = rollback = cursor

    with pytest.raises(ConfigurationError, match="give qmark, format or pyformat"):
        apply_numbered(Wrapped(), add(0), name="seen", query_id="q", number=0)
