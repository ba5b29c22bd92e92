"""The tables: made by migrations, equal to what the code believes, made once."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from broker.errors import ConfigurationError
from broker.storage import migrations
from broker.storage.engine import Database
from broker.storage.migrations import upgrading
from broker.storage.schema import metadata
from support.databases import create_database, drop_database, server_url

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
    assert migrations.newest() == ScriptDirectory.from_config(upgrading.config()).get_current_head()
    engine = database.sqlalchemy_engine()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
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


def test_texts_compare_by_their_bytes(database: Database) -> None:
    migrations.migrate(database)
    if database.dialect.embedded:
        return
    session = database.session()
    found = session.fetch(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns WHERE table_schema = DATABASE()"
        " AND collation_name IS NOT NULL AND table_name <> 'alembic_version'"
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
        "import sys; from broker.storage.engine import Database; from broker.storage.migrations import migrate;"
        " database = Database(sys.argv[1]); sys.stdin.read(1); migrate(database); database.close()"
    )
    command = [sys.executable, "-W", "error", "-c", program, url]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    # All have connected, or will soon, and wait for the word.
    answers = [process.communicate("go", timeout=120)[1] for process in reversed(running)]
    assert ([process.returncode for process in running], answers) == ([0] * 2, [""] * 2)


def test_a_newer_database_is_refused_and_left_alone(database: Database) -> None:
    migrations.migrate(database)
    session = database.session()
    session.begin()
    session.run("UPDATE alembic_version SET version_num = ?", ("9999",))
    session.commit()
    database.release(session)
    for _ in range(2):  # The lock is given back by the refusal.
        with pytest.raises(ConfigurationError, match="upgrade the broker"):
            migrations.migrate(database)
    assert migrations.current(database) == "9999"
