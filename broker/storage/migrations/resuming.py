"""Migrations that resume where an earlier one was interrupted.

The servers commit at each DDL statement, and the version is written after the last statement of a version. So an
interrupted version is run again, and finds part of its changes. Each DDL statement is atomic, on the servers as well,
so the existing tables show what is left to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic.ddl.mysql import MySQLImpl

from broker.errors import ConfigurationError

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationContext

_COLUMNS = sa.text(
    "SELECT column_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = :of ORDER BY ordinal_position"
)
_INDEXES = sa.text(
    "SELECT index_name, column_name, non_unique FROM information_schema.statistics"
    " WHERE table_schema = DATABASE() AND table_name = :of ORDER BY index_name, seq_in_index"
)


def resume(context: MigrationContext) -> None:
    """Makes the operations of all versions check first what exists already.

    SQLite needs none of this: there all versions are one transaction.
    """
    found = context.impl
    if isinstance(found, MySQLImpl):
        # Only here, not under the dialect's name: a program that embeds a broker may have its own migrations.
        context.impl = ResumingImpl(
            context.dialect,
            context.connection,
            found.as_sql,
            found.transactional_ddl,
            found.output_buffer,
            found.context_opts,
        )


class ResumingImpl(MySQLImpl):
    """Applies only missing changes.

    Changes of columns are not checked: repeating them has no effect, and the servers detect that.
    """

    def create_table(self, table: sa.Table, **rest: Any) -> None:
        """Creates a table; an existing one must be the same.

        Raises:
            ConfigurationError: a foreign table has the name.
        """
        found = self._columns(table.name)
        if not found:
            super().create_table(table, **rest)
            return
        keys = {"PRIMARY": [column.name for column in table.primary_key.columns]}
        for each in table.constraints:
            if isinstance(each, sa.UniqueConstraint):
                keys[str(each.name)] = [column.name for column in each.columns]
        unique = {name: columns for name, (columns, one) in self._indexes(table.name).items() if one}
        if (found, unique) != ([column.name for column in table.columns], keys):
            raise ConfigurationError(
                f"The database has a table {table.name!r} that is not of halfmq: "
                "set table_prefix, give the broker a database of its own, or rename that table.",
                field="table_prefix",
            )

    def drop_table(self, table: sa.Table, **rest: Any) -> None:
        """Drops a table."""
        if self._columns(table.name):
            super().drop_table(table, **rest)

    def add_column(self, table_name: str, column: sa.Column[Any], **rest: Any) -> None:
        """Adds a column."""
        if column.name not in self._columns(table_name):
            super().add_column(table_name, column, **rest)

    def drop_column(self, table_name: str, column: sa.Column[Any], **rest: Any) -> None:
        """Drops a column."""
        if column.name in self._columns(table_name):
            super().drop_column(table_name, column, **rest)

    def create_index(self, index: sa.Index, **rest: Any) -> None:
        """Creates an index; one of its name over other columns is an error, as without this class."""
        wanted = ([column.name for column in index.columns], bool(index.unique))
        if self._indexes_of(index).get(str(index.name)) != wanted:
            super().create_index(index, **rest)

    def drop_index(self, index: sa.Index, **rest: Any) -> None:
        """Drops an index. If a new one of the same name follows, a repetition drops that and re-creates it."""
        if str(index.name) in self._indexes_of(index):
            super().drop_index(index, **rest)

    def _columns(self, table: str) -> list[str]:
        """The columns in their order; none when there is no such table."""
        return [name for (name,) in self._look(_COLUMNS, table)]

    def _indexes_of(self, index: sa.Index) -> dict[str, tuple[list[str], bool]]:
        if index.table is None:
            raise ValueError(f"index {index.name} names no table")
        return self._indexes(index.table.name)

    def _indexes(self, table: str) -> dict[str, tuple[list[str], bool]]:
        """Columns of each index, and whether it is unique."""
        found: dict[str, tuple[list[str], bool]] = {}
        for name, column, several in self._look(_INDEXES, table):
            found.setdefault(name, ([], not several))[0].append(column)
        return found

    def _look(self, query: sa.TextClause, table: str) -> list[Any]:
        if self.connection is None:
            raise RuntimeError("migrations need a database to look at")
        return list(self.connection.execute(query, {"of": table}))
