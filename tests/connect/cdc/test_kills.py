"""The subscription, the broker and the database are killed, frozen and doubled under load; each row is counted."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pymysql
import pytest

from client_core.admin import Admin
from connect.cdc.sources import CaptureProcess, Source, Topic, file_of
from support.brokers import BrokerProcess
from support.databases import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS = int(os.environ.get("HALFMQ_CDC_KILLS", "4"))
LARGE = 3000


class Load:
    """Transactions of one row, of some and of many; remembers those whose commit was answered, and those in doubt."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ending = threading.Event()
        self.committed: list[int] = []
        self.doubtful: set[int] = set()
        self.went_on = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number, chosen = 0, random.Random(1)
        while not self._ending.is_set():
            try:
                with self._source.connect(autocommit=False) as connection, connection.cursor() as cursor:
                    while not self._ending.is_set():
                        size = chosen.choice((1, 1, 1, 3, 3, 40, LARGE if chosen.random() < 0.1 else 100))
                        mine = list(range(number, number + size))
                        number += size
                        for start in range(0, size, 1000):
                            some = mine[start : start + 1000]
                            marks = ",".join(f"({each}, {mine[0]}, {size})" for each in some)
                            cursor.execute(f"INSERT INTO shop.load_rows VALUES {marks}")
                        self.doubtful.update(mine)
                        connection.commit()
                        self.doubtful.difference_update(mine)
                        self._ending.wait(0.005)  # Else more rows would wait than are published in a minute.
                        with self.went_on:
                            self.committed += mine
                            self.went_on.notify_all()
            except pymysql.err.MySQLError:
                self._ending.wait(0.05)

    def more(self, rows: int) -> None:
        """Waits for so many more rows."""
        with self.went_on:
            wanted = len(self.committed) + rows
            assert self.went_on.wait_for(lambda: len(self.committed) >= wanted, 120)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


@pytest.fixture
def broker(kind: Kind, fresh_database: Callable[[Kind], str]) -> Iterator[BrokerProcess]:
    """A broker on the server of the other kind: its database goes on when the source is killed."""
    with BrokerProcess(fresh_database("mysql" if kind == "mariadb" else "mariadb")) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("rows", queues=1)
        yield broker


def whole(topic: Topic, load: Load, source: Source) -> None:
    """Each committed row once, in the order of the log, and transactions whole."""
    source.run("INSERT INTO shop.load_rows VALUES (-1, -1, 1)")
    topic.until(lambda found: any(b'"after":{"id":-1,' in message.body for message in found))
    rows = [json.loads(message.body)["after"] for message in topic.messages]
    found = [row["id"] for row in rows if row["id"] >= 0]
    assert len(found) == len(set(found)), "doubled"
    there = {number for (number,) in source.ask("SELECT id FROM shop.load_rows WHERE id >= 0")}
    assert set(found) == there
    assert set(load.committed) <= there <= set(load.committed) | load.doubtful
    assert found == sorted(found)
    at = 0
    while at < len(rows):  # All rows of a transaction, side by side.
        size = rows[at]["size"]
        assert {row["first"] for row in rows[at : at + size]} == {rows[at]["first"]}
        at += size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(3600)
def test_kills_under_load(kind: Kind, tmp_path: Path, broker: BrokerProcess) -> None:
    source = Source(kind, tmp_path / "source")
    chosen = random.Random(KILLS)
    with ExitStack() as stack:
        stack.enter_context(source.server)
        source.run("CREATE DATABASE shop", "CREATE TABLE shop.load_rows (id INT PRIMARY KEY, first INT, size INT)")
        listen = broker.endpoint
        stack.callback(lambda: running.end() if running.process.poll() is None else None)
        running = CaptureProcess(
            file_of(listen, source.host, table=[{"match": "shop.*", "topic": "rows", "order": "none"}]), tmp_path
        )
        running.await_log("following")
        load = Load(source)
        topic = Topic(listen)
        try:
            for number in range(KILLS):
                load.more(chosen.randint(20, 800))
                victim = ("subscription", "source", "subscription", "broker")[number % 4]
                if victim == "subscription":
                    running.kill()
                    running.start()
                elif victim == "source":
                    source.server.kill()
                    source.server.start()
                else:
                    broker.kill()
                    broker = BrokerProcess(broker.database, listen=listen)
                    stack.enter_context(broker)
            load.more(200)
            load.end()
            whole(topic, load, source)
            assert running.stop()[0] == 0
        except BaseException:
            print("".join(running.lines))
            raise
        finally:
            load.end()
            topic.close()
            running.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_one_and_a_second_one(
    kind: Kind, tmp_path: Path, broker: BrokerProcess, sources: Callable[[Kind], Source]
) -> None:
    source = sources(kind)
    source.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    source.run("CREATE TABLE shop.load_rows (id INT PRIMARY KEY, first INT, size INT)")
    table = [{"match": "shop.*", "topic": "rows", "order": "none"}]
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    told = [
        file_of(broker.endpoint, source.host, table=table, database={"server_id": number}) for number in (4001, 4002)
    ]
    first = CaptureProcess(told[0], folders[0])
    first.await_log("following")
    load = Load(source)
    topic = Topic(broker.endpoint)
    second = None
    try:
        load.more(100)
        first.signal(signal.SIGSTOP)
        load.more(300)
        second = CaptureProcess(told[1], folders[1])
        second.await_log("following")
        load.more(300)
        first.signal(signal.SIGCONT)
        status, _, err = first.end()
        assert status == 3, err
        assert "another process" in err
        load.more(100)
        load.end()
        whole(topic, load, source)
        assert second.stop()[0] == 0
    finally:
        load.end()
        topic.close()
        first.kill()
        if second is not None:
            second.stop()
