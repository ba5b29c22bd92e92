"""Upgrades a database's tables to the required version, with Alembic."""

from __future__ import annotations

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
USUAL_VERSIONS = "alembic_version"
"""Alembic's default table of versions, which applications may use."""


def config(names: TableNames) -> Config:
    """Alembic's settings."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.attributes["names"] = names
    return made


def upgrade(database: Database) -> None:
    """Creates or upgrades the tables; see migrate."""
    # Alembic keeps the current migration in module variables.
    with _one_at_a_time, database.sqlalchemy_engine().connect() as connection:
        database.dialect.take_migration_turn(connection, str(database.url.database))
        _upgrade(connection, config(database.names))


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
    """The version of tables created when Alembic's default table was used; it is moved to halfmq's own table.

    Raises:
        ConfigurationError: nothing was created yet, and foreign tables have the required names.
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
