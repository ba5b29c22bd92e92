"""Tables that halfmq keeps in the user's database: as SQL, and as SQLAlchemy's MetaData."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import dialect_of

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["Column", "Kind", "Table"]

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")


class Kind(Enum):
    """What a column holds."""

    ID = "id"
    """A UUID as text."""
    WORD = "word"
    """A short word in ASCII."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is never NULL."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first column is the primary key.

    Attributes:
        name: Its name, with the schema before a dot where it is not the connection's own.
        columns: Its columns.
    """

    name: str
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Checks the name, which is written into statements.

        Raises:
            ConfigurationError: It is none, or would need quoting.
        """
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            msg = (
                f"table is a name of small letters, digits and underscores, perhaps after a schema and a dot, "
                f"not {self.name!r}"
            )
            raise ConfigurationError(msg, field="table")

    def sql(self, dialect: str) -> str:
        """The statement that creates the table where it does not exist.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.

        Raises:
            ConfigurationError: There is no such dialect.
        """
        database = dialect_of(dialect)
        lines = [f"  {column.name} {database.types[column.kind.value]} NOT NULL" for column in self.columns]
        lines.append(f"  PRIMARY KEY ({self.columns[0].name})")
        body = ",\n".join(lines)
        return f"CREATE TABLE IF NOT EXISTS {self.name} (\n{body}\n){database.table_options}"

    def to_metadata(self, metadata: sa.MetaData) -> sa.Table:
        """Adds the table to a MetaData, for ``create_all`` and for Alembic's autogenerate.

        Returns:
            The table.
        """
        import sqlalchemy as sa  # noqa: PLC0415 - only its users have it

        from client_core.local_database import sqlalchemy_types  # noqa: PLC0415

        schema, _, name = self.name.rpartition(".")
        known = metadata.tables.get(self.name)
        if known is not None:
            return known
        columns: list[Any] = [
            sa.Column(column.name, sqlalchemy_types.TYPES[column.kind.value], primary_key=not number, nullable=False)
            for number, column in enumerate(self.columns)
        ]
        return sa.Table(name, metadata, *columns, schema=schema or None, mysql_engine="InnoDB", mariadb_engine="InnoDB")
