"""`halfmq doctor` on SQLite's file, and the bounds that keep a diagnosis short on every database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from broker.ports.diagnosis import Bounds, Severity
from broker.storage.diagnosis.examination import examine
from broker.storage.diagnosis.inspection import INSPECTIONS
from broker.storage.diagnosis.settings import durability
from broker.storage.diagnosis.subject import BoundedSession, Subject, TookTooLong
from broker.storage.engine.connection import Database
from broker.storage.engine.dialects.sqlite import LOG_KEPT
from conformance.diagnosing import ALL, SETTINGS, findings, one, today
from conformance.fake_server import FakeServer
from conformance.world import HOUR, START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.world import World

SQLITE = pytest.mark.parametrize("kind", ["sqlite"])


@pytest.fixture
def database(world: World) -> Iterator[Database]:
    """Connections of the diagnosis."""
    with closing(world.database()) as opened:
        yield opened


@SQLITE
def test_a_log_that_a_reader_keeps_from_being_emptied(world: World, database: Database) -> None:
    bounds = Bounds(8 << 20, 1 << 30)
    with (
        closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as reader,
        closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as writer,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM topic").fetchall()
        writer.execute("CREATE TABLE filler (content BLOB)")
        assert findings(database, "history-list", log_bytes=bounds) == []
        for _ in range(10):
            writer.execute("INSERT INTO filler VALUES (zeroblob(1048576))")
        found = one(
            findings(database, "history-list", log_bytes=bounds), Severity.WARNING, "the write-ahead log has 1", "lsof"
        )
        assert float(found.found.split()[4]) > 9


@SQLITE
def test_a_log_that_was_large_once_is_no_finding_after_the_next_commits_of_a_broker(
    world: World, database: Database
) -> None:
    bounds = Bounds(LOG_KEPT + (1 << 20), 1 << 30)
    broker = world.session()
    broker.run("CREATE TABLE filler (content BLOB)")
    with closing(sqlite3.connect(world.url.removeprefix("sqlite:///"), isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM topic").fetchall()
        for _ in range(40):
            broker.run("INSERT INTO filler VALUES (zeroblob(1048576))")
        one(findings(database, "history-list", log_bytes=bounds), Severity.WARNING, "reads an older state")
        reader.execute("COMMIT")
        # The first one copies the log into the database, the second one begins it anew.
        for _ in range(2):
            broker.run("INSERT INTO filler VALUES (zeroblob(1))")
        assert findings(database, "history-list", log_bytes=bounds) == []


@SQLITE
def test_a_file_without_a_log(world: World, database: Database) -> None:
    session = database.session()
    session.run("PRAGMA journal_mode = DELETE")
    database.release(session)
    # Whoever opens the file anew switches it on, where the disk allows it; this session had it open before.
    session = database.session()
    try:
        found = durability(Subject(session, database, SETTINGS))
    finally:
        database.release(session)
    one(found, Severity.WARNING, "journal mode is delete, not wal", "local disk")


@SQLITE
def test_a_statement_that_does_not_end_is_ended(database: Database) -> None:
    session, inspection = database.session(reading=True), INSPECTIONS["sqlite"]
    inspection.limit(session, 0.1)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    with pytest.raises(sqlite3.OperationalError) as ended:
        session.fetch(endless)
    database.renew(session)
    assert inspection.is_limit(ended.value)
    assert not inspection.is_limit(sqlite3.OperationalError("no such table: topic"))


@SQLITE
def test_checks_of_servers_are_left_out(database: Database) -> None:
    names = [each.check for each in examine(database, SETTINGS, ALL)]
    assert set(ALL) - set(names) == {"servers", "rights", "isolation", "oldest-transaction", "lock-holders"}
    assert names == sorted(names, key=ALL.index)


def test_no_statement_begins_after_the_time_of_a_check(database: Database) -> None:
    now = [0.0]
    session = database.session(reading=True)
    bounded = BoundedSession(session, database, 5.0, lambda: now[0])
    assert bounded.fetch("SELECT topic_id FROM topic") == ([] if database.dialect.one_writer else ())
    now[0] = 5.1
    with pytest.raises(TookTooLong):
        bounded.fetch("SELECT topic_id FROM topic")
    database.renew(session)


def test_a_check_out_of_time_is_a_finding(world: World, database: Database) -> None:
    found = findings(database, "retention", seconds=-1.0)
    one(found, Severity.WARNING, "cannot be looked at: the database did not answer within -1 s")


def test_times_ahead_of_the_databases_clock_are_found(world: World, database: Database) -> None:
    assert findings(database, "clock") == []
    session = world.session()
    session.begin()
    columns = "transaction_id, state, source, half_count, check_count, prepared_at, decided_at"
    session.insert("op_record", columns, [(bytes(16), 2, 1, 1, 0, START, today() + HOUR)])
    session.commit()
    found = one(findings(database, "clock"), Severity.CRITICAL, "min ahead of the database's clock, which was set back")
    assert "correct the clock" in found.remedy


def test_a_server_that_is_too_old() -> None:
    server = FakeServer("8.0.36")
    try:
        with closing(Database(server.url)) as opened:
            found = one(findings(opened, "settings"), Severity.CRITICAL, "mysql 8.0.36; halfmq needs 8.4")
        assert found.remedy == "upgrade the server"
    finally:
        server.close()
