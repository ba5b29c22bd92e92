"""The version of a database's tables: the current one, the required one, and the upgrade."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.storage.migrations.explaining import explained

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database


def newest() -> str:
    """The version that this broker requires; file names of versions begin with theirs."""
    return max(file.stem.partition("_")[0] for file in Path(__file__).parent.glob("versions/[0-9]*.py"))


def current(database: Database) -> str | None:
    """The version of a database; None if it has no tables yet, or only some of the first version.

    Raises:
        ConfigurationError: the database cannot be queried.
    """
    with explained(database):
        return _current(database)


def _current(database: Database) -> str | None:
    session = database.session()
    versions = database.names.versions
    found = None
    try:
        if database.dialect.has_table(session, versions):
            found = session.fetch_one(f"SELECT version_num FROM {versions}")
        session.rollback()
    except BaseException:
        database.discard(session)
        raise
    database.release(session)
    return found[0] if found else None


def migrate(database: Database) -> None:
    """Creates or upgrades the tables. Brokers that start together take turns.

    An interrupted earlier migration is completed.

    Raises:
        ConfigurationError: the database is newer than this broker, or has foreign tables of the same names, or another
            migration does not end, or this one cannot be completed: a permission is missing, the connection is lost,
            another session locks the tables.
    """
    if database.volatile and not database.names.prefix:
        from broker.storage.migrations.creating import create  # noqa: PLC0415 - for tests

        create(database, newest())
    elif current(database) != newest():
        # Imported only if needed: that takes as long as the rest of the broker.
        from broker.storage.migrations.upgrading import upgrade  # noqa: PLC0415

        with explained(database):
            upgrade(database)
