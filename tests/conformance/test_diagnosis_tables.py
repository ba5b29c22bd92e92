"""`halfmq doctor` finds tables, columns and indexes that are not as they must be, and plans that do not use them.

Where a remedy is a statement, it is run, and must be one.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from broker.ports.diagnosis import Severity
from broker.storage.diagnosis.examination import examine
from broker.storage.diagnosis.inspection import INSPECTIONS
from broker.storage.diagnosis.inspection.base import PRIMARY
from broker.storage.diagnosis.plans import hot_statements
from broker.storage.engine.connection import Database
from broker.storage.migrations import migrate, newest
from broker.storage.migrations.views import create_views
from conformance.diagnosing import SETTINGS, findings, named, one, results
from conformance.world import PREFIXES, START
from support.databases import create_database, drop_database, server_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.databases import AnyKind

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


@pytest.fixture
def database(kind: AnyKind, tmp_path: Path) -> Iterator[Database]:
    """A database that the test may damage."""
    url = f"sqlite:///{tmp_path / 'own.db'}" if kind == "sqlite" else create_database(server_url(kind))
    with closing(Database(url, table_prefix=PREFIXES.get(kind, ""))) as opened:
        migrate(opened)
        yield opened
    if kind != "sqlite":
        drop_database(url)


def run(database: Database, *statements: str) -> None:
    """Runs statements with the plain names of tables."""
    session = database.session()
    for statement in statements:
        session.run(statement)
    session.commit()
    database.renew(session)


def mended(database: Database, remedy: str) -> None:
    """Runs a remedy as it is given, with the names that tables have in the database."""
    session = database.session()
    session.cursor.execute(remedy)
    session.commit()
    database.renew(session)
    assert findings(database, "tables") == []


def table(database: Database, name: str) -> str:
    return database.names.table(name)


def index(database: Database, name: str) -> str:
    """Its name in the database."""
    return table(database, name) if database.dialect.one_writer else name


def dropped(database: Database, name: str, of: str) -> str:
    return f"DROP INDEX {index(database, name)}" + ("" if database.dialect.one_writer else f" ON {of}")


def test_an_index_that_was_dropped(database: Database) -> None:
    run(database, dropped(database, "half_due", "half_message"))
    words = f"no index {index(database, 'half_due')} of {table(database, 'half_message')}"
    found = one(findings(database, "tables"), CRITICAL, words)
    if not database.dialect.one_writer:
        # Brokers name the index in their statements.
        one(findings(database, "plans"), CRITICAL, "the statement for checks that are due fails", "half_due")
    mended(database, found.remedy)
    assert findings(database, "plans") == []


def test_an_index_on_other_columns(database: Database) -> None:
    own = index(database, "op_decided")
    run(database, dropped(database, "op_decided", "op_record"), f"CREATE INDEX {own} ON op_record (prepared_at)")
    found = one(findings(database, "tables"), CRITICAL, f"{own} of", "is on (prepared_at), not on (decided_at)")
    assert found.remedy.startswith(f"drop the index {own} of {table(database, 'op_record')}, then CREATE INDEX")
    run(database, dropped(database, "op_decided", "op_record"))
    mended(database, found.remedy.partition(", then ")[2])


def test_an_index_that_is_not_of_halfmq(database: Database) -> None:
    run(database, "CREATE INDEX somebodys ON message (stored_at)")
    found = one(findings(database, "tables"), WARNING, "somebodys of", "not of halfmq", "DROP INDEX somebodys")
    assert "refused" not in found.found
    run(database, "CREATE UNIQUE INDEX others ON message (born_at)")
    assert named(findings(database, "tables"), "others", "rows may be refused").severity is WARNING


def test_a_table_that_was_dropped(database: Database) -> None:
    run(database, "DROP TABLE dedup_key")
    one(findings(database, "tables"), CRITICAL, f"there is no table {table(database, 'dedup_key')}", "from a backup")


def test_a_view_that_was_dropped(database: Database) -> None:
    view = f"{database.names.prefix}halfmq_parked"
    run(database, f"DROP VIEW {view}")
    one(findings(database, "tables"), WARNING, f"there is no view {view}", "halfmq migrate --views")
    create_views(database)
    assert findings(database, "tables") == []


def test_a_table_in_the_place_of_a_view(database: Database) -> None:
    view = f"{database.names.prefix}halfmq_lag"
    run(database, f"DROP VIEW {view}", f"CREATE TABLE {view} (id INTEGER)")
    one(findings(database, "tables"), WARNING, f"there is no view {view}")


def test_a_column_of_another_type(database: Database) -> None:
    if database.dialect.one_writer:
        run(
            database,
            "DROP TABLE redriven",
            "CREATE TABLE redriven (queue_id INTEGER NOT NULL, log_offset BIGINT NOT NULL, redriven_at VARCHAR(40) NOT"
            " NULL, PRIMARY KEY (queue_id, log_offset))",
        )
        one(findings(database, "tables"), CRITICAL, "redriven_at is of the type varchar(40), not bigint", "backup")
        return
    run(database, "ALTER TABLE redriven MODIFY redriven_at VARCHAR(40) NOT NULL")
    words = f"{table(database, 'redriven')}.redriven_at is of the type varchar(40), not bigint"
    mended(database, one(findings(database, "tables"), CRITICAL, words).remedy)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE sink_transaction MODIFY half_count INT NULL", "half_count may be NULL"),
        ("ALTER TABLE queue MODIFY stored_bytes BIGINT NOT NULL", "stored_bytes has the default None, not 0"),
        ("ALTER TABLE topic MODIFY name VARCHAR(127) COLLATE utf8mb4_general_ci NOT NULL", "by utf8mb4_general_ci"),
        ("ALTER TABLE topic DROP COLUMN deleted_at", "there is no column"),
        ("ALTER TABLE lease MODIFY lease_id BIGINT NOT NULL", "lease_id is not AUTO_INCREMENT"),
    ],
)
def test_a_column_that_is_otherwise_not_as_it_must_be(database: Database, change: str, words: str) -> None:
    run(database, change)
    found = one(findings(database, "tables"), CRITICAL, words)
    if "general_ci" not in change:
        mended(database, found.remedy)


def test_a_column_that_is_not_of_halfmq(database: Database) -> None:
    run(database, "ALTER TABLE topic ADD COLUMN owner VARCHAR(20)")
    mended(database, one(findings(database, "tables"), WARNING, "owner is not of halfmq").remedy.partition(": ")[2])


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_column_that_halfmq_gives_no_value(database: Database) -> None:
    run(database, "ALTER TABLE topic ADD COLUMN owner VARCHAR(20) NOT NULL")
    one(findings(database, "tables"), CRITICAL, "owner is not of halfmq, and must be given a value")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_table_without_transactions(database: Database) -> None:
    run(database, "ALTER TABLE redriven ENGINE = MyISAM")
    found = one(findings(database, "tables"), CRITICAL, "of the engine MyISAM", "stop the brokers")
    mended(database, found.remedy.partition(", then ")[2])


def test_tables_of_another_version(database: Database) -> None:
    run(database, f"UPDATE {database.names.versions} SET version_num = '0003'")
    one(findings(database, "tables"), CRITICAL, f"at version 0003, and this program's are at {newest()}", "migrate")
    # What is in them is not looked at: columns may be missing.
    for check in NEED_TABLES:
        words = f"cannot be looked at: the tables are at version 0003, and this program's are at {newest()}"
        one(findings(database, check), WARNING, words, "run `halfmq migrate`")
    assert checked(database, "tables", *NEED_TABLES) == {"tables", *COMPARES_CLOCKS[database.dialect.one_writer]}
    run(database, f"UPDATE {database.names.versions} SET version_num = '9999'")
    one(findings(database, "tables"), CRITICAL, "at version 9999", "use the version of halfmq that the brokers have")


def test_another_prefix_than_the_tables_have(database: Database) -> None:
    with closing(Database(database.url, table_prefix="other_")) as other:
        one(findings(other, "tables"), CRITICAL, "no tables of halfmq with the prefix other_", "halfmq migrate")


NEED_TABLES = ("clock", "plans", "stuck-checks", "producers", "retention", "deletions", "scheduled")
COMPARES_CLOCKS = {False: ["clock"], True: []}
"""By whether the database's clock is this machine's."""


def checked(database: Database, *checks: str) -> set[str]:
    """The checks that were done."""
    return {each.check for each in examine(database, SETTINGS, checks)}


@pytest.mark.parametrize("check", NEED_TABLES)
def test_a_check_without_tables_to_look_at_is_not_passed(database: Database, check: str) -> None:
    with closing(Database(database.url, table_prefix="other_")) as other:
        found = one(findings(other, check), WARNING, "cannot be looked at: the database has no tables of halfmq")
        assert "correct the URL or the table prefix" in found.remedy


def test_checks_without_tables_to_look_at_are_left_out_where_a_finding_says_that_there_are_none(
    database: Database,
) -> None:
    with closing(Database(database.url, table_prefix="other_")) as other:
        assert checked(other, "tables", *NEED_TABLES) == {"tables", *COMPARES_CLOCKS[database.dialect.one_writer]}
        if not database.dialect.one_writer:
            one(findings(other, "rights"), WARNING, "cannot be looked at: the database has no tables of halfmq")
            assert checked(other, "tables", "rights") == {"tables"}


# Plans


def filled(database: Database, rows: int = 1500) -> None:
    """A topic's queue with so many messages, and as many pending transactions."""
    session = database.session()
    session.begin()
    session.insert("topic", "name, queue_count, retention, created_at", [("orders", 1, 1 << 50, START)])
    session.insert("queue", "topic_id, queue_no, next_offset, min_offset", [(1, 0, rows, 0)])
    session.insert("producer_group", "name", [("shop",)])
    numbers = [(n, n.to_bytes(16, "big")) for n in range(rows)]
    session.insert(
        "message",
        "queue_id, log_offset, transaction_id, position, body, size, born_at, stored_at",
        [(1, n, i, 0, b"x", 1, START, START) for n, i in numbers],
    )
    session.insert(
        "half_message",
        "transaction_id, position, producer_group_id, topic_id, body, size, born_at, check_state, check_due_at,"
        " check_count",
        [(i, 0, 1, 1, b"x", 1, START, 1, START, 0) for _, i in numbers],
    )
    session.insert("consumer_group", "name, max_attempts, created_at", [("billing", 3, START)])
    session.insert("group_progress", "group_id, queue_id, next_offset", [(1, 1, 0)])
    lease = "group_id, queue_id, first_offset, message_count, token, attempt, available_at"
    session.insert("lease", lease, [(1, 1, n, 1, n, 1, START) for n in range(rows)])
    columns = "transaction_id, state, source, half_count, check_count, prepared_at, decided_at"
    session.insert("op_record", columns, [(i, 2, 1, 1, 0, START, START) for _, i in numbers])
    session.commit()
    database.release(session)


def test_each_of_the_ten_statements_reaches_its_tables_by_the_indexes_that_are_asked_for(database: Database) -> None:
    filled(database)
    inspection, session = INSPECTIONS[database.dialect.name], database.session(reading=True)
    statements = hot_statements(session, START)
    assert len(statements) == 10
    for hot in statements:
        steps = inspection.plan(session, hot.statement.sql, hot.statement.values or ())
        used = {(step.table, step.key) for step in steps}
        met = {
            alias
            for alias, (name, key) in hot.wanted.items()
            if (table(database, alias) if alias == name else alias, key if key == PRIMARY else index(database, key))
            in used
        }
        # One table of a statement may have two names: SQLite deletes in another form.
        assert {hot.wanted[alias] for alias in met} == set(hot.wanted.values()), (hot.what, steps)
        assert not any(step.scans for step in steps if step.table in met), (hot.what, steps)
    database.renew(session)


def test_plans_of_a_filled_database_use_the_indexes(database: Database) -> None:
    filled(database)
    (found,) = results(database, "plans")
    assert (found.severity, found.found) == (Severity.OK, "10 statements use their indexes")


def test_a_scan_is_found_where_there_are_many_rows_only(database: Database) -> None:
    words = f"a range of messages reads all rows of {table(database, 'message')}, which are 1000 or more, by a scan"
    if database.dialect.one_writer:
        run(database, *_without_key_on_file(database, "message"))
    else:
        run(database, "ALTER TABLE message DROP PRIMARY KEY")
    assert findings(database, "plans") == []
    filled(database)
    found = one(findings(database, "plans"), CRITICAL, words, "not by the primary key", "ANALYZE")
    assert table(database, "message") in found.remedy


def _without_key_on_file(database: Database, name: str) -> list[str]:
    """Makes a table anew, without its primary key."""
    session = database.session()
    columns = ", ".join(f"{row[1]} {row[2]}" for row in session.fetch(f"PRAGMA table_info({name})"))
    database.release(session)
    return [f"DROP TABLE {name}", f"CREATE TABLE {name} ({columns})"]
