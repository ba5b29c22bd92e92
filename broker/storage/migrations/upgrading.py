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


def config() -> Config:
    """Alembic's settings."""
    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    return made


def upgrade(database: Database) -> None:
    """Creates or upgrades the tables; see migrate."""
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
            _upgrade(connection, config())
        finally:
            if not database.dialect.embedded:
                connection.execute(sa.text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK})
                connection.commit()


def _upgrade(connection: sa.Connection, settings: Config) -> None:
    version = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(settings).walk_revisions()}
    if version is not None and version not in known:
        raise ConfigurationError(
            f"The database's tables are at version {version}, which this broker does not know: upgrade the broker.",
            field="database",
        )
    settings.attributes["connection"] = connection
    command.upgrade(settings, "head")
    connection.commit()
