"""A migration is cut off at any of its statements: the next start finishes it, with the same tables and rows.

A server ends a transaction at each DDL statement, so a migration that ends early leaves what it had made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from broker.errors import ConfigurationError
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from faults.migrating import EMPTY, Migrated, content, older_versions, uninterrupted
from faults.mysql_proxy import Delay
from support.brokers import BrokerProcess
from support.databases import connect
from support.forking import ForkedCommand
from support.patience import HANG
from support.serving import run_serve

if TYPE_CHECKING:
    from faults.mysql_proxy import When
    from support.databases import Kind


EVERYTHING = bool(os.environ.get("HALFMQ_FAULT_ALL"))
WHEN = pytest.mark.parametrize("when", ["before", "after"])
# One of so many statements has a start of its own that is cut off there.
STRIDE = 1 if EVERYTHING else 30
# From the first version all later ones are passed through.
STARTS = [EMPTY, *(older_versions() if EVERYTHING else older_versions()[:1])]


@pytest.mark.parametrize("version", STARTS)
def test_each_start_comes_one_statement_further(kind: Kind, version: str) -> None:
    """Each start is cut off behind the first statement that none before it was cut off at, so all states are seen."""
    expected, statements = uninterrupted(kind, version)
    seen: list[str] = []

    def unseen(statement: str) -> bool:
        if statement in seen:
            return False
        seen.append(statement)
        return True

    with Migrated(kind, version) as database:
        while database.migrate_cut_off(database.cut_at(unseen, when="after")):
            assert len(seen) <= statements
        database.is_whole(expected)
    # The COMMIT at the end is one more, or the same as one before it.
    assert len(seen) >= statements - 3


@WHEN
@pytest.mark.parametrize("version", STARTS)
def test_a_start_that_is_cut_off_is_finished_by_the_next(kind: Kind, version: str, when: When) -> None:
    expected, statements = uninterrupted(kind, version)
    for wanted in range(0 if when == "before" else STRIDE // 2, statements, STRIDE):
        passing = iter(range(wanted))
        with Migrated(kind, version) as database:
            # The proxy reads one statement at a time here, so the iterator is used up by the statements that pass.
            assert database.migrate_cut_off(
                database.cut_at(lambda _, passing=passing: next(passing, None) is None, when=when)  # type: ignore[misc]
            ), wanted
            database.migrate()
            database.is_whole(expected)


KILLED_AT = [
    (EMPTY, "CREATE TABLE topic"),
    (EMPTY, "CREATE INDEX half_due"),
    (EMPTY, "INSERT INTO halfmq_version"),
    ("0001", "ALTER TABLE queue"),
    ("0001", "UPDATE queue"),
    ("0001", "lease_queue"),
]


@WHEN
@pytest.mark.parametrize(("version", "words"), KILLED_AT if EVERYTHING else KILLED_AT[1::4])
def test_a_broker_killed_in_its_migration_starts_again(kind: Kind, version: str, words: str, when: When) -> None:
    expected, _ = uninterrupted(kind, version)
    with Migrated(kind, version) as database:
        address = database.proxy.url(database.url)
        reached, go_on = threading.Event(), threading.Event()

        def kill() -> None:
            reached.set()
            go_on.wait(60)

        rule = database.cut_at(lambda statement: words in statement, when=when, action=kill)
        arguments = ["serve", "--listen=127.0.0.1:0", f"--database={address}"]
        broker = ForkedCommand(arguments, {}, ".")
        assert reached.wait(60)
        broker.kill()
        assert broker.wait(30) == -signal.SIGKILL
        go_on.set()
        rule.wait(30)
        for pipe in (broker.stdout, broker.stderr):
            pipe.close()
        with BrokerProcess(address) as again:
            assert again.stop() == 0
        database.is_whole(expected | {"maintenance_turn": content(database.url)["maintenance_turn"]})


def test_a_statement_may_take_longer_than_other_answers(kind: Kind) -> None:
    expected, _ = uninterrupted(kind, EMPTY)
    with Migrated(kind, EMPTY) as database:
        rule = database.cut_at(lambda statement: "CREATE TABLE message" in statement, when="after", action=Delay(3.0))
        database.migrate(answer_timeout=1.0)
        assert rule.fired == 1
        database.is_whole(expected)


PROGRAM = (
    "import sys; from broker.storage.engine.connection import Database;"
    " from broker.storage.engine.dialects import servers; from broker.storage.migrations import migrate;"
    " servers.MIGRATION_SILENCE = 1; migrate(Database(sys.argv[1]))"
)


def test_a_process_that_stands_still_loses_its_turn(kind: Kind) -> None:
    expected, _ = uninterrupted(kind, EMPTY)
    with Migrated(kind, EMPTY) as database:
        frozen, go_on = threading.Event(), threading.Event()
        process: subprocess.Popen[str]

        def freeze() -> None:
            process.send_signal(signal.SIGSTOP)
            frozen.set()
            go_on.wait(120)

        rule = database.cut_at(lambda statement: "CREATE TABLE message" in statement, when="after", action=freeze)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, database.proxy.url(database.url)], stderr=subprocess.PIPE, text=True
        )
        assert frozen.wait(60)
        # Nothing of the frozen process's connection was closed; only the server can have taken the lock back.
        database.migrate()
        assert rule.fired == 0
        database.is_whole(expected)
        go_on.set()
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=HANG)
        assert process.returncode == 1
        assert "lost its connection" in said
        database.is_whole(expected)


def test_databases_of_one_server_do_not_wait_for_each_other(kind: Kind) -> None:
    with Migrated(kind, EMPTY) as slow, Migrated(kind, EMPTY) as other:
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go_on.wait(120)

        rule = slow.cut_at(lambda _: True, when="after", action=hold)
        thread = threading.Thread(target=slow.migrate_cut_off, args=(rule,))
        thread.start()
        assert held.wait(60)
        # In a process of its own: migrations of one process take turns, whichever database they are of.
        subprocess.run([sys.executable, "-c", PROGRAM, other.url], check=True, timeout=HANG)
        assert rule.fired == 0
        go_on.set()
        thread.join(60)
        other.is_whole(uninterrupted(kind, EMPTY)[0])


def test_tables_of_somebody_else_are_not_taken_for_halfmqs(kind: Kind) -> None:
    with Migrated(kind, EMPTY) as database, connect(database.url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE topic (topic_id INT PRIMARY KEY, name TEXT)")
        with pytest.raises(ConfigurationError, match="would have: topic") as refused:
            database.migrate()
        assert refused.value.field == "table_prefix"
        # Nor where a migration was cut off meanwhile.
        cursor.execute("CREATE TABLE halfmq_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        with pytest.raises(ConfigurationError, match="'topic' that is not of halfmq") as refused:
            database.migrate()
        assert refused.value.field == "table_prefix"
        cursor.execute("DROP TABLE topic, halfmq_version")
        database.migrate()
        database.is_whole(uninterrupted(kind, EMPTY)[0])


def test_a_user_without_rights_is_told_which(kind: Kind) -> None:
    with Migrated(kind, EMPTY) as database, connect(database.url, autocommit=True) as connection:
        parts = urlsplit(database.url)
        user = f"u_{uuid.uuid4().hex[:12]}"
        theirs = parts._replace(netloc=f"{user}:secret@{parts.hostname}:{parts.port}").geturl()
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {user}@'%' IDENTIFIED BY 'secret'")
            try:
                for granted, lacking in (("SELECT", "CREATE"), ("CREATE, INSERT, UPDATE", "INDEX"), ("INDEX", "ALTER")):
                    cursor.execute(f"GRANT {granted} ON {parts.path[1:]}.* TO {user}@'%'")
                    refused = run_serve("--database", theirs)
                    refused.names("database", user, f"lacks the right {lacking}", "GRANT SELECT, INSERT", "CREATE")
                    assert "secret" not in refused.errors
                cursor.execute(f"GRANT ALTER, DROP, DELETE, CREATE VIEW ON {parts.path[1:]}.* TO {user}@'%'")
                with closing(Database(theirs)) as opened:
                    migrate(opened)
            finally:
                cursor.execute(f"DROP USER {user}@'%'")
        database.is_whole(uninterrupted(kind, EMPTY)[0])
