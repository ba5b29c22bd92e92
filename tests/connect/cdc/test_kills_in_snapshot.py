"""The subscription is killed while it copies a table that changes: each row and each later change is published once."""

from __future__ import annotations

import json
import random
import re
import threading
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from client_core.admin import Admin
from connect.cdc.sources import CaptureProcess, Source, Topic, file_of, number_of
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = 40_000
KEYS = 2 * ROWS
"""Half of them are in the table when it is copied first: rows come and go between those that are copied."""
KILLS = (4000, 0, 4000, 4000)
"""How many rows more are published before each kill, at least; 0: it may be about to open its view."""
NOTE = "x" * 200

Row: TypeAlias = tuple[int, int]
"""Its primary key, and the number of the change that wrote it: no two changes make the same row."""
Change: TypeAlias = tuple[str, Row | None, Row | None]
"""The operation, and the row before and after it."""
View: TypeAlias = tuple[int, int]
"""Of a copy: how many transactions it has, and the last key that was copied from it."""


@pytest.fixture
def broker(sqlite_url: str) -> Iterator[BrokerProcess]:
    """A broker in a process of its own."""
    with BrokerProcess(sqlite_url) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("rows", queues=1)
        yield broker


class Writer:
    """The only session that writes: so the number of a transaction tells which one it is."""

    def __init__(self, source: Source, table: dict[int, int]) -> None:
        """Starts it; `table` is what the table has, and is kept up to date."""
        self._source = source
        self._table = table
        self._last = 0
        self._error: BaseException | None = None
        self._ending = threading.Event()
        self._went_on = threading.Condition()
        self.committed: list[list[Change]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write(random.Random(5))
        except BaseException as error:
            with self._went_on:
                self._error = error
                self._went_on.notify_all()

    def _write(self, chosen: random.Random) -> None:
        with self._source.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not self._ending.is_set():
                changes: list[Change] = []
                for _ in range(chosen.randint(1, 4)):
                    changes += self._change(cursor, chosen)
                if chosen.random() < 0.1:
                    connection.rollback()
                    for op, before, after in reversed(changes):
                        apply(self._table, (op, after, before))
                    continue
                connection.commit()
                with self._went_on:
                    self.committed.append(changes)
                    self._went_on.notify_all()
                self._ending.wait(0.002)

    def _change(self, cursor: Any, chosen: random.Random) -> list[Change]:
        key, other = chosen.randrange(KEYS), chosen.randrange(KEYS)
        self._last += 1
        new, what = (key, self._last), chosen.random()
        changes: list[Change]
        if key not in self._table:
            cursor.execute("INSERT INTO shop.items VALUES (%s, %s, %s)", (*new, NOTE))
            changes = [("c", None, new)]
        elif what < 0.3:
            cursor.execute("DELETE FROM shop.items WHERE id = %s", (key,))
            changes = [("d", (key, self._table[key]), None)]
        elif what < 0.5 and other not in self._table:
            cursor.execute("UPDATE shop.items SET id = %s, version = %s WHERE id = %s", (other, self._last, key))
            changes = [("d", (key, self._table[key]), None), ("c", None, (other, self._last))]
        else:
            cursor.execute("UPDATE shop.items SET version = %s WHERE id = %s", (self._last, key))
            changes = [("u", (key, self._table[key]), new)]
        for change in changes:
            apply(self._table, change)
        return changes

    def more(self, transactions: int) -> None:
        """Waits for so many more transactions."""
        with self._went_on:
            wanted = len(self.committed) + transactions
            assert self._went_on.wait_for(lambda: self._error or len(self.committed) >= wanted, 120), "it stands still"
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ends it."""
        self._ending.set()
        self._thread.join()


def apply(table: dict[int, int], change: Change) -> None:
    """Changes the table; the change must fit to what is in it."""
    _, before, after = change
    if before is not None:
        assert table.pop(before[0], None) == before[1], f"not there: {change}"
    if after is not None:
        assert after[0] not in table, f"there already: {change}"
        table[after[0]] = after[1]


def expected(table: dict[int, int], committed: list[list[Change]], views: list[View]) -> list[Change]:
    """What is to be published: of each view the rows up to its last key, then each change that its view has not."""
    bounds = [*(to for _, to in views[:-1]), KEYS]
    wanted: list[Change] = []
    table, done, start = dict(table), 0, -1
    for (seen, _), to in zip(views, bounds, strict=True):
        for changes in committed[done:seen]:
            for change in changes:
                apply(table, change)
        wanted += [("r", None, (key, table[key])) for key in sorted(table) if start < key <= to]
        done, start = seen, to
    for number, changes in enumerate(committed, 1):
        for change in changes:
            key = next(row[0] for row in change[1:] if row is not None)
            seen = next(seen for (seen, _), to in zip(views, bounds, strict=True) if key <= to)
            if number > seen:
                wanted.append(change)
    return wanted


def row_of(image: dict[str, Any] | None) -> Row | None:
    """The row of an image."""
    assert image is None or image["note"] == NOTE
    return None if image is None else (image["id"], image["version"])


def transactions_in(position: str) -> int:
    """The number of the last transaction in a position of a log that one server wrote."""
    return int(re.split("[:-]", position)[-1])


def at_least(count: int) -> Callable[[list[Any]], bool]:
    """Whether there are so many messages."""
    return lambda found: len(found) >= count


def prepare(source: Source) -> dict[int, int]:
    """Makes the table; its rows."""
    source.run("CREATE TABLE shop.items (id INT PRIMARY KEY, version INT NOT NULL, note VARCHAR(200) NOT NULL)")
    table = dict.fromkeys(range(0, KEYS, 2), 0)
    with source.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO shop.items VALUES (%s, %s, %s)", [(key, 0, NOTE) for key in table])
        connection.commit()
    return table


@pytest.mark.timeout(900)
def test_each_row_and_each_later_change_is_published_once(
    source: Source, broker: BrokerProcess, tmp_path: Path
) -> None:
    first = prepare(source)
    position = {"mysql": "gtid_executed", "mariadb": "gtid_binlog_pos"}[source.kind]
    before = transactions_in(source.ask(f"SELECT @@GLOBAL.{position}")[0][0])
    now = dict(first)
    writer, topic = Writer(source, now), Topic(broker.endpoint)
    writer.more(20)
    running = CaptureProcess(file_of(broker.endpoint, source.host), tmp_path)
    counts = [0]
    try:
        for more in KILLS:
            running.await_log("copying")
            topic.until(at_least(counts[-1] + more))
            running.kill()
            counts.append(len(topic.read()))
            assert {message.tag for message in topic.messages} == {"r"}  # The log comes behind all of the copy.
            writer.more(20)
            running.start()
        running.await_log("following")
        writer.more(100)
        writer.end()
        source.run(f"INSERT INTO shop.items VALUES ({KEYS}, 0, '{NOTE}')")
        last: Change = ("c", None, (KEYS, 0))
        writer.committed.append([last])
        apply(now, last)
        mark = f'"after":{{"id":{KEYS},'.encode()
        topic.until(lambda found: bool(found) and mark in found[-1].body)
        assert running.stop()[0] == 0
    except BaseException:
        print("".join(running.lines))
        raise
    finally:
        writer.end()
        topic.close()
        running.stop()
    rows = [json.loads(message.body) for message in topic.messages]
    copied = [row for row in rows if row["op"] == "r"]
    # Each kill was inside of the copy: something of it was published, and something was not.
    assert 0 < counts[1] <= counts[-1] < len(copied)
    ends = {row["source"]["snapshot"]: row["after"]["id"] for row in copied}
    views = [(transactions_in(at) - before, key) for at, key in ends.items()]
    assert len(views) > KILLS.index(0) + 1
    found: list[Change] = [(row["op"], row_of(row["before"]), row_of(row["after"])) for row in rows]
    for place, (one, wanted) in enumerate(zip_longest(found, expected(first, writer.committed, views))):
        assert one == wanted, f"message {place} of {len(found)}; views {views}"
    assert len({message.message_id for message in topic.messages}) == len(found)
    numbers = [number_of(row) - before for row in rows if row["op"] != "r"]
    assert numbers == sorted(numbers)
    # Changes that the last view has, too, were published for rows of earlier views; others were passed over.
    assert numbers[0] <= views[-1][0]
    assert len(numbers) < sum(map(len, writer.committed))
    published: dict[int, int] = {}
    for change in found:
        apply(published, change)
    assert published == now == dict(source.ask("SELECT id, version FROM shop.items"))
