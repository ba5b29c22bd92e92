"""Bringing a database's tables to the version this broker needs, with Alembic."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database
    from broker.storage.tables.naming import TableNames

_one_at_a_time = threading.Lock()
# In seconds: for other migrations; how long one may send nothing (less, so that a frozen one is outlived); for tables.
LOCK_WAIT = 60
SILENCE = 30
TABLE_WAIT = 50
USUAL_VERSIONS = "alembic_version"
"""Where Alembic keeps versions unless told otherwise; applications do."""


def config(names: TableNames) -> Config:
    """Alembic's settings."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.attributes["names"] = names
    return made


def upgrade(database: Database) -> None:
    """Creates or upgrades the tables; see migrate."""
    # Alembic keeps the migration at work in module variables.
    with _one_at_a_time, database.sqlalchemy_engine().connect() as connection:
        if database.dialect.embedded:
            # Other processes wait here; what follows is one transaction, also its CREATE TABLEs.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            _take_turn(connection, str(database.url.database))
        # The server takes the lock back with the connection, which ends here or with this process.
        _upgrade(connection, config(database.names))


def _take_turn(connection: sa.Connection, name_of_database: str) -> None:
    """Waits for the migrations of others.

    One whose process stands still, or whose machine has vanished, must not hold the lock for ever: the server ends its
    connection when it has sent nothing for a while. What a statement takes does not count.
    """
    for name, seconds in (
        ("wait_timeout", SILENCE),
        # While an ALTER TABLE waits for a transaction that uses the table, all others wait behind it.
        ("lock_wait_timeout", TABLE_WAIT),
        ("innodb_lock_wait_timeout", TABLE_WAIT),
    ):
        connection.exec_driver_sql(f"SET SESSION {name} = {seconds}")
    # The server has one room for the names of locks, and 64 characters for each.
    lock = f"halfmq-migration-{hashlib.sha256(name_of_database.lower().encode()).hexdigest()[:32]}"
    taken = connection.execute(sa.text("SELECT GET_LOCK(:lock, :wait)"), {"lock": lock, "wait": LOCK_WAIT})
    if taken.scalar() != 1:
        raise ConfigurationError(
            f"Another migration of this database did not end within {LOCK_WAIT} s (see SHOW PROCESSLIST). "
            "Start again when it has ended.",
            field="database",
        )


def _upgrade(connection: sa.Connection, settings: Config) -> None:
    names: TableNames = settings.attributes["names"]
    known = {script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()}
    context = MigrationContext.configure(connection, opts={"version_table": names.versions})
    version = context.get_current_revision()
    if version is None:
        version = _taken_over(connection, names, known)
    if version is not None and version not in known:
        raise ConfigurationError(
            f"The database's tables are at version {version}, which this broker does not know: upgrade the broker.",
            field="database",
        )
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
    connection.commit()


def _taken_over(connection: sa.Connection, names: TableNames, known: set[str]) -> str | None:
    """The version of tables that were made when Alembic's usual table of versions was used; from now on it is ours.

    Raises:
        ConfigurationError: nothing was made yet, and tables of somebody else have the names that ours would have.
    """
    there = {name.lower() for name in sa.inspect(connection).get_table_names()}
    version: str | None = None
    if not names.prefix and {USUAL_VERSIONS, "half_message", "op_record"} <= there:
        version = connection.exec_driver_sql(f"SELECT version_num FROM {USUAL_VERSIONS}").scalar()
    if version in known:
        if names.versions not in there:
            connection.exec_driver_sql(
                f"CREATE TABLE {names.versions} (version_num VARCHAR(32) NOT NULL,"
                f" CONSTRAINT {names.versions}_pkc PRIMARY KEY (version_num))"
            )
        connection.exec_driver_sql(f"INSERT INTO {names.versions} (version_num) VALUES ('{version}')")
        connection.exec_driver_sql(f"DROP TABLE {USUAL_VERSIONS}")
        return version
    taken = sorted(there & set(names.all()))
    if taken and names.versions not in there:
        raise ConfigurationError(
            f"The database has tables of the names that halfmq's would have: {', '.join(taken)}. Set table_prefix, "
            "such as halfmq_, or give the broker a database of its own. Nothing was changed.",
            field="table_prefix",
        )
    return None
