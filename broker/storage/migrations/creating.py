"""Creates all tables at once, in a new database that will never be upgraded: one in memory.

Alembic alone takes longer to load and run than such a broker takes to start. A test compares the tables of both ways.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from broker.storage.migrations import views
from broker.storage.tables.schema import metadata

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database


@cache
def statements() -> tuple[str, ...]:
    """The statements that create all tables and their indexes."""
    dialect = sqlite.dialect()
    tables = metadata.sorted_tables
    made = [CreateTable(table) for table in tables], [CreateIndex(i) for table in tables for i in table.indexes]
    return tuple(str(each.compile(dialect=dialect)) for some in made for each in some)


def create(database: Database, version: str) -> None:
    """Creates the tables of a version, which is the newest."""
    versions = database.names.versions
    session = database.session()
    session.begin()
    for statement in statements():
        session.run(statement)
    for statement in views.statements(database.names, sqlite=True):
        session.cursor.execute(statement)
    session.run(f"CREATE TABLE {versions} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    session.run(f"INSERT INTO {versions} VALUES ('{version}')")
    session.commit()
    database.release(session)
