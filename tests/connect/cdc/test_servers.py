"""Servers that go away: restart, failover by GTID, a purged log; each row is counted."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from connect.cdc.sources import Capture, Source, Topic, settings
from halfmq_connect.cdc.errors import CannotFollow
from support.databases import KINDS, Kind

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "CREATE TABLE shop.orders (id INT PRIMARY KEY, item VARCHAR(40))"


def insert(source: Source, first: int, count: int) -> None:
    source.run(*(f"INSERT INTO shop.orders VALUES ({number}, 'apple')" for number in range(first, first + count)))


def ids(topic: Topic, count: int) -> list[int]:
    topic.rows(count)
    return [json.loads(message.body)["after"]["id"] for message in topic.messages]


def replicate(replica: Source, primary: Source) -> None:
    host, _, port = primary.host.partition(":")
    if replica.kind == "mysql":
        replica.run(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{host}', SOURCE_PORT={port}, SOURCE_USER='halfmq',"
            " SOURCE_PASSWORD='halfmq', SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=600,"
            " GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )
    else:
        replica.run(
            "SET GLOBAL gtid_slave_pos = ''",
            f"CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='halfmq',"
            " MASTER_PASSWORD='halfmq', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
            "START SLAVE",
        )


def caught_up(replica: Source, primary: Source) -> None:
    if replica.kind == "mysql":
        ((position,),) = primary.ask("SELECT @@GLOBAL.gtid_executed")
        assert replica.ask(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{position}', 60)") == [(0,)]
    else:
        ((position,),) = primary.ask("SELECT @@GLOBAL.gtid_binlog_pos")
        assert replica.ask(f"SELECT MASTER_GTID_WAIT('{position}', 60)") == [(0,)]


@pytest.mark.parametrize("kind", KINDS if os.environ.get("HALFMQ_FAULT_ALL") else ["mysql"])
def test_restart_failover_and_a_purged_log(kind: Kind, tmp_path: Path, endpoint: str, topic: Topic) -> None:
    """The servers of one story: each costs seconds to make."""
    primary, replica = Source(kind, tmp_path / "one", 1), Source(kind, tmp_path / "two", 2)
    with ExitStack() as stack:
        # The accounts are made on each server by itself, which is no transaction of the story.
        for each in (primary, replica):
            stack.enter_context(each.server)
            each.run("RESET BINARY LOGS AND GTIDS" if kind == "mysql" else "RESET MASTER")
        primary.run("CREATE DATABASE shop", ORDERS)
        replicate(replica, primary)
        caught_up(replica, primary)
        of = settings(endpoint, primary.host, replica.host)
        with Capture(of):
            insert(primary, 0, 5)
            assert ids(topic, 5) == [0, 1, 2, 3, 4]
            # A restart begins another file, and tables have other numbers.
            primary.server.kill()
            primary.server.start()
            insert(primary, 5, 10)
            assert ids(topic, 15) == list(range(15))
            # The primary is gone; its replica goes on, with transactions of its own.
            caught_up(replica, primary)
            primary.server.stop()
            replica.run("STOP REPLICA" if kind == "mysql" else "STOP SLAVE")
            insert(replica, 15, 5)
            assert ids(topic, 20) == list(range(20))
        # Nobody follows, and the log is purged.
        insert(replica, 20, 5)
        replica.run("FLUSH BINARY LOGS")
        insert(replica, 25, 1)
        name = replica.ask("SHOW BINARY LOGS")[-1][0]
        replica.run(f"PURGE BINARY LOGS TO '{name}'")
        alone = settings(endpoint, replica.host)
        error = Capture(alone, wait=False).failure()
        assert isinstance(error, CannotFollow)
        assert "purge" in str(error)
        assert "--new-snapshot" in str(error)
        assert ids(topic, 20) == list(range(20))
        # The way out.
        with Capture(alone, new_snapshot=True):
            found = topic.rows(46)
        assert sorted(row["after"]["id"] for row in found if row["op"] == "r") == list(range(26))


def test_a_server_that_is_behind_is_waited_for(source: Source, endpoint: str, topic: Topic) -> None:
    """What was published is not there: it may come, and until then nothing is read."""
    source.run(ORDERS)
    with Capture(settings(endpoint, source.host)):
        insert(source, 0, 1)
        topic.rows(1)
    source.run("RESET BINARY LOGS AND GTIDS" if source.kind == "mysql" else "RESET MASTER")
    running = Capture(settings(endpoint, source.host), wait=False)
    assert not running.capture.following.wait(2)
    running.stop()
    assert running.error is None
    assert len(topic.read()) == 1
