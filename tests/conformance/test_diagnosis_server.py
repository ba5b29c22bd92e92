"""`halfmq doctor` finds what is wrong with a server: settings, rights, isolation, transactions, locks, clocks."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pymysql
import pytest

from broker.ports.diagnosis import Bounds, Severity
from broker.storage.diagnosis.examination import CHECKS, examine
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate
from broker.storage.tables.schema import metadata
from conformance.diagnosing import (
    ALL,
    FROM_NOTHING,
    ROWS_ONLY,
    SECONDS,
    SETTINGS,
    account,
    findings,
    held,
    named,
    on_session,
    one,
    results,
    today,
)
from faults.mysql_proxy import Delay, Kept, MySqlProxy
from support.databases import connect, create_database, drop_database, server_url
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from broker.ports.diagnosis import Finding
    from broker.storage.adapters.store import Store
    from conformance.world import World
    from support.databases import Kind

TABLES = len(metadata.tables)
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
pytestmark = pytest.mark.parametrize("kind", ["mariadb", "mysql"])


@pytest.fixture
def database(world: World) -> Iterator[Database]:
    """Connections of the diagnosis."""
    with closing(world.database()) as opened:
        yield opened


# Settings


def test_a_packet_too_small_for_the_largest_body(database: Database) -> None:
    found = one(findings(database, "settings", largest_body=1 << 30), CRITICAL, "messages of 1073741824 bytes")
    assert "SET GLOBAL max_allowed_packet = 2148532224" in found.remedy


def test_connections_that_are_used_up(database: Database) -> None:
    one(findings(database, "settings", connections=Bounds(0.001, 2)), WARNING, "of 300 connections", "max_connections")
    one(findings(database, "settings", connections=Bounds(0.001, 0.002)), CRITICAL, "of 300 connections")


WRONG = "--innodb-flush-log-at-trx-commit=2 --log-bin --sync-binlog=0 --innodb-doublewrite=OFF --performance-schema=OFF"


def test_a_server_with_every_setting_wrong(kind: Kind, tmp_path: Path) -> None:
    with PrivateServer(kind, tmp_path, {"HALFMQ_DB_OPTIONS": WRONG}) as server:
        with closing(Database(server.url)) as opened:
            migrate(opened)
        with connect(server.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL binlog_format = 'STATEMENT'")
            cursor.execute("SET GLOBAL read_only = 1")
            # This one is no fault: brokers ask for their level in each session.
            cursor.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        with closing(Database(server.url)) as opened:
            found = findings(opened, "settings")
            assert named(found, "innodb_flush_log_at_trx_commit is 2", "set it to 1").severity is CRITICAL
            assert named(found, "sync_binlog is 0", "SET GLOBAL sync_binlog = 1").severity is WARNING
            assert named(found, "innodb_doublewrite is off", "restart the server").severity is WARNING
            assert named(found, "read_only is on", "SET GLOBAL read_only = OFF").severity is CRITICAL
            assert len(found) == 4
            one(
                findings(opened, "isolation"),
                CRITICAL,
                "binlog_format is STATEMENT",
                "SET GLOBAL binlog_format = 'ROW'",
            )
            if kind == "mysql":
                one(
                    findings(opened, "lock-holders"),
                    WARNING,
                    "the performance schema is off",
                    "performance_schema = ON",
                )
            else:
                assert findings(opened, "lock-holders") == []
            # It can be looked at all the same.
            assert findings(opened, "rights") == findings(opened, "tables") == findings(opened, "retention") == []


# Rights


def test_a_right_that_is_missing(world: World, database: Database) -> None:
    with account(world.url, "SELECT, INSERT, UPDATE ON `{database}`.*") as url:
        found = with_user(world, url, "rights")
    lacking = named(found, f"lacks DELETE on {TABLES} of {TABLES} tables", "brokers cannot work")
    assert lacking.severity is CRITICAL
    assert f"GRANT DELETE ON `{database.url.database}`.* TO 'doctor_" in lacking.remedy
    migrating = named(found, "lacks CREATE, ALTER, DROP, INDEX, which migrations need", "--no-migrate")
    assert migrating.severity is WARNING
    assert len(found) == 2


def test_a_right_on_a_single_table_that_is_missing(world: World, database: Database) -> None:
    tables = [database.names.table(each) for each in ("topic", "queue")]
    rights = without_right_on(database, *tables)
    rights += [f"SELECT, INSERT, DELETE ON `{{database}}`.{each}" for each in tables]
    with account(world.url, *rights) as url:
        found = with_user(world, url, "rights", migrates=False)
    one(found, CRITICAL, f"lacks UPDATE on 2 of {TABLES} tables", *tables)


def without_right_on(database: Database, *tables: str) -> list[str]:
    """Rights on rows, table by table, as for a user that was given no right on the whole database."""
    rest = [each for each in [database.names.versions, *database.names.all()] if each not in tables]
    return [f"{ROWS_ONLY.partition(' ON ')[0]} ON `{{database}}`.{each}" for each in rest]


def test_a_table_that_a_migration_added_without_a_grant_is_a_right_that_is_missing(
    world: World, database: Database
) -> None:
    """The information schema has no table on which a user has no right."""
    added = database.names.table("refused_submission")
    with account(world.url, *without_right_on(database, added)) as url:
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
            lacking = named(with_user(world, url, "rights", migrates=False), f"lacks {right} on 1 of ", f" ({added})")
            assert lacking.severity is CRITICAL
            assert f"GRANT {right} ON `{database.url.database}`.* TO 'doctor_" in lacking.remedy
        found = [each for each in with_user(world, url, "tables") if "there is no view" not in each.found]
        hidden = one(found, WARNING, "cannot be looked at: the database user 'doctor_")
        assert f"lacks SELECT on the table {added}" in hidden.found
        assert f"GRANT SELECT ON `{database.url.database}`.{added} TO 'doctor_" in hidden.remedy
        assert "backup" not in hidden.remedy


def test_a_table_that_is_gone_is_told_from_one_without_a_right(kind: Kind) -> None:
    own = create_database(server_url(kind))
    try:
        with closing(Database(own)) as opened:
            migrate(opened)
            rights = without_right_on(opened)
        with (
            account(own, *rights) as url,
            connect(own, autocommit=True) as connection,
            connection.cursor() as cursor,
            closing(Database(url)) as opened,
        ):
            cursor.execute("DROP TABLE dedup_key")
            missing = named(findings(opened, "tables"), "there is no table dedup_key", "restore it from a backup")
            assert missing.severity is CRITICAL
            assert findings(opened, "rights", migrates=False) == []
    finally:
        drop_database(own)


def test_a_user_without_a_right_on_any_table_is_told_what_to_grant(world: World, database: Database) -> None:
    with connect(world.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE somebodys (id INT)")
    try:
        with account(world.url, "SELECT ON `{database}`.somebodys") as url:
            lacking = named(with_user(world, url, "rights", migrates=False), f"lacks DELETE on {TABLES} of {TABLES} ")
            assert lacking.severity is CRITICAL
            versions = database.names.versions
            words = f"lacks SELECT on the table {versions}, or there is none"
            for check in ("tables", "retention"):
                found = one(with_user(world, url, check), WARNING, "cannot be looked at: the database user", words)
                assert f"GRANT SELECT ON `{database.url.database}`.{versions} TO 'doctor_" in found.remedy
            with closing(Database(url, table_prefix=world.table_prefix)) as opened:
                together = list(examine(opened, SETTINGS, ["clock", "tables", "retention", "plans"]))
            # It is said once, and what needs no table is looked at.
            assert [(each.check, each.severity) for each in together] == [("clock", Severity.OK), ("tables", WARNING)]
    finally:
        with connect(world.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE somebodys")


def test_rights_of_rows_are_enough_for_brokers_that_do_not_migrate(world: World, database: Database) -> None:
    with account(world.url, ROWS_ONLY) as url:
        assert with_user(world, url, "rights", migrates=False) == []


def test_rights_that_were_granted_by_a_pattern_or_a_role_count(world: World, database: Database) -> None:
    everything = "ALL PRIVILEGES ON `halfmq\\_test\\_%`.*"
    with account(world.url, everything) as url:
        assert with_user(world, url, "rights") == []
    with account(world.url) as url, connect(world.url, autocommit=True) as connection, connection.cursor() as cursor:
        user = f"'{url.partition('//')[2].partition(':')[0]}'@'%'"
        role = user.partition("@")[0].replace("doctor", "role")
        cursor.execute(f"CREATE ROLE {role}")
        try:
            cursor.execute(f"GRANT ALL PRIVILEGES ON `{database.url.database}`.* TO {role}")
            cursor.execute(f"GRANT {role} TO {user}")
            of_user = f"{role} FOR" if world.kind == "mariadb" else f"{role} TO"
            cursor.execute(f"SET DEFAULT ROLE {of_user} {user}")
            assert with_user(world, url, "rights") == []
        finally:
            cursor.execute(f"DROP ROLE {role}")


def test_who_may_not_look_is_told_what_to_grant(world: World, database: Database) -> None:
    with account(world.url, ROWS_ONLY) as url:
        for check in ("oldest-transaction", "lock-holders", "history-list"):
            found = with_user(world, url, check)
            if check == "history-list" and world.kind == "mariadb":
                assert found == []  # Everybody may read that one.
                continue
            words = "cannot be looked at: the database user 'doctor_"
            one(found, WARNING, words, "lacks PROCESS on *.*", "GRANT PROCESS ON *.* TO 'doctor_")
        assert with_user(world, url, "stuck-checks") == with_user(world, url, "plans") == []
    if world.kind == "mysql":
        with account(world.url, ROWS_ONLY, "PROCESS ON *.*") as url:
            one(with_user(world, url, "lock-holders"), WARNING, "GRANT SELECT ON performance_schema.* TO 'doctor_")
    with account(world.url, ROWS_ONLY, "PROCESS ON *.*", "SELECT ON performance_schema.*") as url:
        assert with_user(world, url, "lock-holders") == []


def with_user(world: World, url: str, check: str, **settings: object) -> list[Finding]:
    """What another database user finds."""
    with closing(Database(url, table_prefix=world.table_prefix)) as opened:
        return findings(opened, check, **settings)


# Isolation


def test_a_session_that_does_not_get_its_isolation(database: Database) -> None:
    changing = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    found = one(on_session(database, "isolation", changing), CRITICAL, "REPEATABLE-READ", "READ-COMMITTED", "proxy")
    assert found.check == "isolation"
    assert on_session(database, "isolation") == []


def test_a_proxy_that_keeps_the_isolation_level_to_itself(world: World) -> None:
    """As one does that shares the server's sessions among its clients."""
    with MySqlProxy.to(world.url) as proxy:
        proxy.on_statement("ISOLATION LEVEL READ COMMITTED", when="before", action=Kept(), times=None)
        with closing(Database(proxy.url(world.url), table_prefix=world.table_prefix)) as opened:
            one(findings(opened, "isolation"), CRITICAL, "REPEATABLE-READ", "READ-COMMITTED", "connect directly")
        proxy.clear()
        with closing(Database(proxy.url(world.url), table_prefix=world.table_prefix)) as opened:
            assert findings(opened, "isolation") == []


# Transactions


def test_a_transaction_that_stays_open_is_named(world: World, database: Database) -> None:
    assert findings(database, "oldest-transaction") == []
    topic = database.names.table("topic")
    with held(world.url, "START TRANSACTION WITH CONSISTENT SNAPSHOT", f"SELECT * FROM {topic}") as session:
        # Those of other tests come and go.
        found = until(
            lambda: [
                each
                for each in findings(database, "oldest-transaction", open_for=FROM_NOTHING)
                if f"session {session} (" in each.found
            ]
        )
        finding = one(found, WARNING, "(halfmq from 127.0.0.1", f"database {database.url.database})", "open for ")
        assert finding.remedy.endswith(f"KILL {session}")
        assert len(findings(database, "oldest-transaction", open_for=FROM_NOTHING)) <= 5


def test_the_history_that_a_snapshot_keeps_is_counted(world: World, database: Database) -> None:
    assert findings(database, "history-list") == []
    turn = database.names.table("maintenance_turn")
    with (
        held(world.url, "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
        connect(world.url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute(f"INSERT INTO {turn} VALUES ('history', '', 0)")
        for number in range(300):
            cursor.execute(f"UPDATE {turn} SET until = {number + 1} WHERE task = 'history'")
        finding = one(
            until(lambda: findings(database, "history-list", history=Bounds(300, 10_000_000))),
            WARNING,
            "the history list has ",
            "end the oldest transaction",
        )
    assert int(finding.found.split()[4]) >= 300


def test_a_transaction_that_holds_locks_and_those_who_wait_for_it(
    world: World, database: Database, store: Store
) -> None:
    assert findings(database, "lock-holders") == []
    turn = database.names.table("maintenance_turn")
    with connect(world.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {turn} VALUES ('locked', '', 0)")
    change = f"UPDATE {turn} SET until = 1 WHERE task = 'locked'"

    def of(session: int, **bounds: Bounds) -> list[Finding]:
        return [each for each in findings(database, "lock-holders", **bounds) if f"session {session} (" in each.found]

    nothing = Bounds(float("inf"), float("inf"))
    with held(world.url, change) as session:
        found = one(until(lambda: of(session, held_for=FROM_NOTHING)), WARNING, "has locked or changed ", "s old")
        assert "for it, the longest" not in found.found
        assert found.remedy.endswith(f"KILL {session}")
        assert of(session) == []
        waiter = connect(world.url)
        waiting = threading.Thread(target=_run_and_close, args=(waiter, change))
        waiting.start()
        bound = Bounds(0, 0)
        found = one(
            until(lambda: of(session, held_for=nothing, waits_for=bound)), CRITICAL, "; 1 waits for it, the longest"
        )
    waiting.join(60)
    assert not waiting.is_alive()
    assert of(session, held_for=FROM_NOTHING) == []


def _run_and_close(connection: pymysql.Connection, sql: str) -> None:
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
        connection.rollback()


def until(look: Callable[[], list[Finding]]) -> list[Finding]:
    """What is found once something is."""
    deadline = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing was found"
        # The server renews its list of transactions only when nobody has read it for a tenth of a second.
        time.sleep(0.3)
    return found


# Clocks


def test_a_server_whose_clock_differs_from_this_machines(database: Database) -> None:
    seconds = today() // SECONDS
    ahead = on_session(database, "clock", f"SET SESSION timestamp = {seconds + 10}")
    one(ahead, WARNING, "s ahead of this machine's", "chronyc")
    assert 8 < float(ahead[0].found.split()[4]) <= 11
    behind = on_session(database, "clock", f"SET SESSION timestamp = {seconds - 600}")
    one(behind, CRITICAL, "10.0 min behind this machine's")
    assert on_session(database, "clock") == []


def test_a_slow_answer_is_no_difference_between_clocks(world: World) -> None:
    with (
        MySqlProxy.to(world.url) as proxy,
        closing(Database(proxy.url(world.url), table_prefix=world.table_prefix)) as opened,
    ):
        proxy.on_statement("UNIX_TIMESTAMP", when="after", action=Delay(2.2), times=None)
        bounds = Bounds(1 * SECONDS, 30 * SECONDS)
        compared, _ = results(opened, "clock", clock=bounds)
        assert (compared.severity, compared.remedy) == (Severity.OK, "")
        assert re.search(r"^the database's clock is 1\.\d s behind this machine's, known to 1\.\d s$", compared.found)
        # What is left of a difference counts.
        proxy.clock = 600
        one(findings(opened, "clock", clock=bounds), CRITICAL, "10.0 min ahead of this machine's, known to")


# Bounds of the diagnosis itself


def test_a_check_that_gets_no_answer_does_not_stop_the_others(world: World, database: Database) -> None:
    topic = database.names.table("topic")
    with held(world.url, f"LOCK TABLES {topic} WRITE"):
        one(
            findings(database, "deletions", seconds=1.0),
            WARNING,
            "cannot be looked at: the database did not answer within 1 s",
            "look again",
        )
        found = list(examine(database, SETTINGS, ["deletions", "stuck-checks", "clock"], seconds_each=1.0))
    assert {each.check for each in found if each.severity} == {"deletions"}
    assert {each.check for each in found} == {"deletions", "stuck-checks", "clock"}


def test_a_row_that_others_have_locked_is_not_waited_for(world: World, database: Database) -> None:
    """The statements that are explained would lock, too."""
    topics = database.names.table("queue")
    with connect(world.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {topics} (topic_id, queue_no, next_offset, min_offset) VALUES (1, 0, 0, 0)")
    names = [name for name in ALL if name != "lock-holders"]
    everything = [f"SELECT * FROM {name} FOR UPDATE" for name in database.names.all()]
    with held(world.url, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", *everything):
        found = list(examine(database, SETTINGS, names, seconds_each=0.9))
    assert [each for each in found if each.severity] == []


def test_it_changes_nothing_and_locks_nothing(world: World, database: Database, store: Store) -> None:
    """A read-only transaction is all that it needs."""
    looking = "SELECT ON `{database}`.*", "PROCESS ON *.*", "SELECT ON performance_schema.*"
    with (
        account(world.url, *looking) as url,
        closing(Database(url, table_prefix=world.table_prefix)) as opened,
    ):
        names = [check.name for check in CHECKS if check.name != "rights"]
        found = list(examine(opened, SETTINGS, names))
    one([each for each in found if each.severity], WARNING, "command denied", "rights to run it", "--skip plans")


def test_every_result_says_what_was_found(database: Database) -> None:
    for name in ALL:
        for each in results(database, name):
            assert each.found
            assert bool(each.remedy) is bool(each.severity)
