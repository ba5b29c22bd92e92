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
    from broker.storage.engine import Database

_one_at_a_time = threading.Lock()
# In seconds: for other migrations; how long one may send nothing (less, so that a frozen one is outlived); for tables.
LOCK_WAIT = 60
SILENCE = 30
TABLE_WAIT = 50


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
        else:
            _take_turn(connection, str(database.url.database))
        # The server takes the lock back with the connection, which ends here or with this process.
        _upgrade(connection, config())


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
