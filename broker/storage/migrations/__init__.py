"""Bringing a database's tables to the version this broker needs, with Alembic."""

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
    from broker.storage.engine import Database

_LOCK = "halfmq-migration"
_one_at_a_time = threading.Lock()
LOCK_WAIT = 60


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


def newest() -> str:
    """The version that this broker needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def current(database: Database) -> str | None:
    """The version a database is at; None when it has no tables yet."""
    engine = database.sqlalchemy_engine()
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def migrate(database: Database) -> None:
    """Creates or upgrades the tables. Brokers that start together take turns.

    Raises:
        ConfigurationError: the database is newer than this broker, or another migration does not end.
    """
    config = _config()
    # Alembic keeps the migration at work in module variables.
    with _one_at_a_time, database.sqlalchemy_engine().connect() as connection:
        if database.dialect.embedded:
            # Other processes wait here; what follows is one transaction, also its CREATE TABLEs.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        if not database.dialect.embedded:
            taken = connection.execute(sa.text("SELECT GET_LOCK(:name, :wait)"), {"name": _LOCK, "wait": LOCK_WAIT})
            if taken.scalar() != 1:
                raise ConfigurationError(
                    f"Another migration of this database did not end within {LOCK_WAIT} s.", field="database"
                )
        try:
            _upgrade(connection, config)
        finally:
            if not database.dialect.embedded:
                connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK})
                connection.commit()


def _upgrade(connection: sa.Connection, config: Config) -> None:
    version = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise ConfigurationError(
            f"The database's tables are at version {version}, which this broker does not know: upgrade the broker.",
            field="database",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
