"""Names of tables and indexes in versions, with the prefix of the migrated database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from broker.storage.tables.naming import TableNames


def names() -> TableNames:
    """The names of all tables."""
    return op.get_context().opts["names"]  # type: ignore[no-any-return]


def table(name: str) -> str:
    """The name of a table."""
    return names().table(name)


def index(name: str) -> str:
    """The name of an index: in SQLite all tables of a file share one namespace of indexes."""
    return table(name) if op.get_bind().dialect.name == "sqlite" else name


def statement(sql: str) -> sa.TextClause:
    """A statement, written with the plain names of tables."""
    return sa.text(names().in_statement(sql))
