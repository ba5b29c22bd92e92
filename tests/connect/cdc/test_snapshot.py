"""The snapshot joins the log without a gap or a double, under writes, and when it is cut off in between."""

from __future__ import annotations

import json
import random
import threading
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from connect.cdc.sources import Capture, Source, Topic, number_of, settings
from halfmq_connect.cdc.errors import Interrupted
from halfmq_connect.cdc.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = (
    "CREATE TABLE shop.items (name VARCHAR(30) COLLATE {} NOT NULL, part INT NOT NULL, version INT,"
    " PRIMARY KEY (name, part))"
)
COLLATIONS = {"mysql": "utf8mb4_0900_ai_ci", "mariadb": "utf8mb4_general_ci"}


class Writers:
    """Sessions that insert, change and delete rows, also in keys that were copied and in others."""

    def __init__(self, source: Source, count: int, seed: int = 7) -> None:
        self._source = source
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(seed + number,)) for number in range(count)]
        self.transactions = 0
        for thread in self._threads:
            thread.start()

    def _write(self, seed: int) -> None:
        chosen = random.Random(seed)
        with self._source.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not self._ending.is_set():
                try:
                    for _ in range(chosen.randint(1, 4)):
                        key = (chosen.choice("aBcDeFgH") + f"{chosen.randint(0, 400)}", chosen.randint(0, 2))
                        what = chosen.random()
                        if what < 0.4:
                            cursor.execute("INSERT IGNORE INTO shop.items VALUES (%s, %s, 1)", key)
                        elif what < 0.75:
                            cursor.execute(
                                "UPDATE shop.items SET version = version + 1 WHERE name = %s AND part = %s", key
                            )
                        elif what < 0.85:
                            moved = (f"{chosen.choice('aBcDeFgH')}{chosen.randint(0, 400)}", *key)
                            cursor.execute(
                                "UPDATE IGNORE shop.items SET name = %s WHERE name = %s AND part = %s", moved
                            )
                        else:
                            cursor.execute("DELETE FROM shop.items WHERE name = %s AND part = %s", key)
                    connection.commit() if chosen.random() < 0.9 else connection.rollback()
                    self.transactions += 1
                except pymysql.err.OperationalError:  # A deadlock.
                    connection.rollback()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def replayed(rows: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """The table that the messages make; each message fits to what was there before, so none is missing or doubled."""
    table: dict[tuple[str, int], int] = {}
    for row in rows:
        before, after = row["before"], row["after"]
        if before is not None:
            key = (before["name"].lower(), before["part"])
            assert table.pop(key, None) == before["version"], f"before {row}"
        if after is not None:
            key = (after["name"].lower(), after["part"])
            assert key not in table, f"there already: {row}"
            table[key] = after["version"]
    return table


def prepare(source: Source) -> None:
    source.run(TABLE.format(COLLATIONS[source.kind]))
    with source.connect(autocommit=False) as connection, connection.cursor() as cursor:
        rows = [
            (f"{letter}{number}", part, 0) for letter in "abcdefgh" for number in range(0, 400, 2) for part in (0, 1)
        ]
        cursor.executemany("INSERT INTO shop.items VALUES (%s, %s, %s)", rows)
        connection.commit()


def compare(source: Source, topic: Topic) -> None:
    source.run("INSERT INTO shop.items VALUES ('the last one', 0, 0)")
    topic.until(lambda found: any(b"the last one" in message.body for message in found))
    assert {message.queue for message in topic.messages} == {0}
    rows = [json.loads(message.body) for message in topic.messages]
    there = {(name.lower(), part): version for name, part, version in source.ask("SELECT * FROM shop.items")}
    assert replayed(rows) == there
    numbers = [number_of(row) for row in rows if row["op"] != "r"]
    assert numbers == sorted(numbers)


def test_it_joins_the_log_while_rows_change(source: Source, endpoint: str, topic: Topic) -> None:
    prepare(source)
    writers = Writers(source, 3)
    try:
        with Capture(
            settings(endpoint, source.host, table=[{"match": "shop.items", "topic": "rows", "order": "none"}])
        ):
            topic.until(lambda found: len(found) > 4000)
            writers.end()
            compare(source, topic)
    finally:
        writers.end()
    assert writers.transactions > 50


def test_a_copy_that_is_cut_off_goes_on_from_a_later_view(
    source: Source, endpoint: str, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off between chunks, before and after the broker took one; rows change, on both sides of the cut."""
    prepare(source)
    commit: Callable[..., None] = Sink.commit
    count = 0

    def cut(sink: Sink, *given: Any) -> None:
        nonlocal count
        count += 1
        if count in {3, 6, 9}:
            raise Interrupted("before it")
        commit(sink, *given)
        if count in {2, 5, 7, 11}:
            raise Interrupted("after it")

    monkeypatch.setattr(Sink, "commit", cut)
    writers = Writers(source, 3, seed=1000)
    try:
        with Capture(
            settings(endpoint, source.host, table=[{"match": "shop.items", "topic": "rows", "order": "none"}])
        ):
            topic.until(lambda found: len(found) > 5000)
            writers.end()
            compare(source, topic)
    finally:
        writers.end()
    assert count > 11


def test_behind_an_event_that_the_server_cannot_read_itself(source: Source, endpoint: str, topic: Topic) -> None:
    """MariaDB tells no position behind an event that is larger than max_allowed_packet is now."""
    size = 2**24 + 100
    ((usual,),) = source.ask("SELECT @@GLOBAL.max_allowed_packet")
    source.run("CREATE TABLE shop.files (content LONGBLOB)", f"SET GLOBAL max_allowed_packet = {2 * size}")
    try:
        source.run(f"INSERT INTO shop.files VALUES (REPEAT('x', {size}))")
    finally:
        source.run(f"SET GLOBAL max_allowed_packet = {min(usual, 2**24)}", "DROP TABLE shop.files")
    try:
        orders = [{"match": "shop.orders", "topic": "rows"}]
        source.run("CREATE TABLE shop.orders (id INT PRIMARY KEY)", "CREATE TABLE shop.notes (id INT PRIMARY KEY)")
        with Capture(settings(endpoint, source.host, table=orders)):
            source.run("INSERT INTO shop.orders VALUES (1)")
            topic.rows(1)
        # What is in the log in front of its snapshot is in the snapshot.
        source.run("INSERT INTO shop.notes VALUES (2)")
        with Capture(settings(endpoint, source.host, table=[*orders, {"match": "shop.notes", "topic": "rows"}])):
            source.run("INSERT INTO shop.orders VALUES (3)")
            found = topic.rows(3)
    finally:
        source.run(f"SET GLOBAL max_allowed_packet = {usual}", "FLUSH BINARY LOGS")
    assert [(each["op"], each["after"]["id"]) for each in found] == [("r", 2), ("c", 1), ("c", 3)]


def test_tables_that_come_later_and_a_new_snapshot(source: Source, endpoint: str, topic: Topic) -> None:
    source.run("CREATE TABLE shop.one (id INT PRIMARY KEY)", "INSERT INTO shop.one VALUES (1)")
    with Capture(settings(endpoint, source.host)):
        source.run("CREATE TABLE shop.two (id INT PRIMARY KEY)", "INSERT INTO shop.two VALUES (2)")
        topic.rows(2)
    # Named later: it is copied when the subscription begins again.
    source.run("CREATE TABLE shop.three (id INT PRIMARY KEY)", "INSERT INTO shop.three VALUES (3)")
    with Capture(settings(endpoint, source.host)):
        source.run("INSERT INTO shop.one VALUES (11)")
        found = topic.rows(4)
    assert [(each["op"], each["after"]["id"]) for each in found] == [("r", 1), ("r", 3), ("c", 2), ("c", 11)]
    with Capture(settings(endpoint, source.host), new_snapshot=True):
        found = topic.rows(8)
    assert sorted(each["after"]["id"] for each in found if each["op"] == "r") == [1, 1, 2, 3, 3, 11]


def test_without_a_snapshot_only_changes_are_published(source: Source, endpoint: str, topic: Topic) -> None:
    source.run("CREATE TABLE shop.one (id INT PRIMARY KEY)", "INSERT INTO shop.one VALUES (1)")
    table = [{"match": "shop.one", "topic": "rows", "snapshot": False}]
    with Capture(settings(endpoint, source.host, table=table)):
        source.run("INSERT INTO shop.one VALUES (2)")
        (found,) = topic.rows(1)
    assert (found["op"], found["after"]) == ("c", {"id": 2})
