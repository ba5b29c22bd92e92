"""The tables: made by migrations, equal to what the code believes, made once."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from broker.errors import ConfigurationError
from broker.storage import migrations
from broker.storage.engine.connection import Database
from broker.storage.engine.dialects.sqlite import IN_MEMORY
from broker.storage.migrations import upgrading
from broker.storage.tables.schema import metadata
from support.databases import create_database, drop_database, server_url
from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.databases import AnyKind


@pytest.fixture
def url(kind: AnyKind, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'new.db'}"
        return
    made = create_database(server_url(kind))
    yield made
    drop_database(made)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """An open database without tables."""
    made = Database(url)
    yield made
    made.close()


def test_the_tables_are_what_the_code_believes(database: Database) -> None:
    assert migrations.current(database) is None
    migrations.migrate(database)
    assert migrations.current(database) == migrations.newest()
    assert migrations.newest() == ScriptDirectory.from_config(upgrading.config(database.names)).get_current_head()
    engine = database.sqlalchemy_engine()
    with engine.connect() as connection:
        opts = {"compare_type": True, "version_table": database.names.versions}
        context = MigrationContext.configure(connection, opts=opts)
        assert compare_metadata(context, metadata) == []
        indexes = {
            (table.name, index["name"], tuple(index["column_names"]))
            for table in metadata.sorted_tables
            for index in sa.inspect(connection).get_indexes(table.name)
            if not index["unique"]
        }
    assert indexes == {
        (table.name, index.name, tuple(column.name for column in index.columns))
        for table in metadata.sorted_tables
        for index in table.indexes
    }


def test_tables_in_memory_are_the_same(database: Database) -> None:
    """They are created without migrations."""
    if not database.dialect.one_writer:
        return
    migrations.migrate(database)
    memory = Database(f"sqlite:///{IN_MEMORY}")
    migrations.migrate(memory)
    try:
        assert migrations.current(memory) == migrations.newest()
        assert described(memory) == described(database)
    finally:
        memory.close()


def described(database: Database) -> dict[str, object]:
    """Columns, keys and indexes of all tables."""
    with database.sqlalchemy_engine().connect() as connection:
        seen = sa.inspect(connection)
        return {
            name: (
                [{**column, "type": str(column["type"])} for column in seen.get_columns(name)],
                seen.get_pk_constraint(name)["constrained_columns"],
                sorted(str(each) for each in seen.get_indexes(name)),
                sorted(str(each) for each in seen.get_unique_constraints(name)),
            )
            for name in seen.get_table_names()
        }


def test_texts_compare_by_their_bytes(database: Database) -> None:
    migrations.migrate(database)
    if database.dialect.one_writer:
        return
    session = database.session()
    found = session.fetch(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns WHERE table_schema = DATABASE()"
        " AND collation_name IS NOT NULL AND table_name <> 'halfmq_version'"
    )
    database.release(session)
    assert found
    assert [row for row in found if row[2] != "utf8mb4_bin"] == []


def test_migrating_again_changes_nothing(database: Database) -> None:
    migrations.migrate(database)
    session = database.session()
    session.begin()
    session.insert("producer_group", "name", [("kept",)])
    session.commit()
    migrations.migrate(database)
    session.begin(write=False)
    assert [tuple(row) for row in session.fetch("SELECT name FROM producer_group")] == [("kept",)]
    session.rollback()
    database.release(session)


def test_brokers_that_start_together_take_turns(url: str) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def run() -> None:
        database = Database(url)
        try:
            start.wait(30)
            migrations.migrate(database)
        except BaseException as error:
            errors.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    database = Database(url)
    assert migrations.current(database) == migrations.newest()
    database.close()


def test_brokers_of_several_processes_take_turns(url: str) -> None:
    program = (
        "import sys; from broker.storage.engine.connection import Database;"
        " from broker.storage.migrations import migrate; database = Database(sys.argv[1]); sys.stdin.read(1);"
        " migrate(database); database.close()"
    )
    command = [sys.executable, "-W", "error", "-c", program, url]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    # All have connected, or will soon, and wait for the word.
    answers = [process.communicate("go", timeout=HANG)[1] for process in reversed(running)]
    assert ([process.returncode for process in running], answers) == ([0] * 2, [""] * 2)


def test_a_newer_database_is_refused_and_left_alone(database: Database) -> None:
    migrations.migrate(database)
    session = database.session()
    session.begin()
    session.run("UPDATE halfmq_version SET version_num = ?", ("9999",))
    session.commit()
    database.release(session)
    for _ in range(2):  # The lock is given back by the refusal.
        with pytest.raises(ConfigurationError, match="upgrade the broker"):
            migrations.migrate(database)
    assert migrations.current(database) == "9999"


def tables(database: Database) -> dict[str, list[str]]:
    """The names of all tables, with those of their columns."""
    with database.sqlalchemy_engine().connect() as connection:
        found = sa.inspect(connection)
        return {name: [each["name"] for each in found.get_columns(name)] for name in found.get_table_names()}


@pytest.fixture
def application(database: Database) -> dict[str, list[str]]:
    """Tables of an application: its own messages, and the versions of its own migrations."""
    with database.sqlalchemy_engine().connect() as connection:
        for statement in (
            "CREATE TABLE message (id INTEGER PRIMARY KEY, sender VARCHAR(20))",
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
            "INSERT INTO alembic_version VALUES ('0001')",
        ):
            connection.exec_driver_sql(statement)
        connection.commit()
    return tables(database)


def test_tables_of_others_are_refused_before_anything_is_made(
    database: Database, application: dict[str, list[str]]
) -> None:
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"would have: message\. Set table_prefix") as refused:
            migrations.migrate(database)
        assert refused.value.field == "table_prefix"
        assert tables(database) == application


def test_with_a_prefix_a_database_is_shared(url: str, database: Database, application: dict[str, list[str]]) -> None:
    """Two brokers' tables, too, as long as their prefixes differ."""
    for prefix in ("hq_", "half_"):
        with closing(Database(url, table_prefix=prefix)) as ours:
            migrations.migrate(ours)
            migrations.migrate(ours)
            assert migrations.current(ours) == migrations.newest()
            with ours.sqlalchemy_engine().connect() as connection:
                wanted = {
                    f"{prefix}{table.name}": {index.name for index in table.indexes} for table in metadata.sorted_tables
                }
                found = {
                    name: {index["name"] for index in sa.inspect(connection).get_indexes(name) if not index["unique"]}
                    for name in wanted
                }
            if ours.dialect.one_writer:
                wanted = {name: {f"{prefix}{index}" for index in indexes} for name, indexes in wanted.items()}
            assert found == wanted
    made = tables(database)
    assert {name: made[name] for name in application} == application
    assert len(made) == len(application) + 2 * (len(metadata.sorted_tables) + 1)
    with database.sqlalchemy_engine().connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "0001"


def test_versions_that_were_kept_in_alembics_usual_table_are_taken_over(database: Database) -> None:
    migrations.migrate(database)
    with database.sqlalchemy_engine().connect() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version SELECT version_num FROM halfmq_version")
        connection.exec_driver_sql("DROP TABLE halfmq_version")
        connection.commit()
    assert migrations.current(database) is None
    migrations.migrate(database)
    assert migrations.current(database) == migrations.newest()
    assert "alembic_version" not in tables(database)


def test_no_column_or_index_has_the_name_of_a_table() -> None:
    """Each of these words in a statement is the table; see broker.storage.tables.naming."""
    names = set(metadata.tables)
    for table in metadata.sorted_tables:
        assert not names & {column.name for column in table.columns}
        assert not names & {index.name for index in table.indexes}
