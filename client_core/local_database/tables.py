"""Tables that halfmq keeps in the user's database: as SQL, and as SQLAlchemy's MetaData."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import Failure, dialect_of, first_line_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from client_core.local_database.dialects import Dialect
    from client_core.local_database.transactions import LocalTransaction

__all__ = ["Column", "Index", "Kind", "Table", "asking_for", "naming_character", "placed"]

_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")


class Kind(Enum):
    """What a column holds."""

    ID = "id"
    """A UUID as text."""
    WORD = "word"
    """A short word in ASCII, up to 36 characters."""
    SERIAL = "serial"
    """A number that the database gives; only as the primary key of one column."""
    NUMBER = "number"
    """A 64-bit number; also a time, in microseconds since 1970 (UTC)."""
    NAME = "name"
    """A text of up to 255 characters, compared by its code points."""
    TEXT = "text"
    """A text without a bound that matters here."""
    BODY = "body"
    """Bytes, up to 16 MiB."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        name: Its name.
        kind: What it holds.
        nullable: Whether it may be NULL.
    """

    name: str
    kind: Kind
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """An index; its name in the database is the table's, an underscore, and its own."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: Its name, with the schema before a dot where it is not the connection's own.
        columns: Its columns.
        key: Names of the primary key's columns; none: the first column.
        indexes: Its further indexes.
        home: The schema that it is in where its name has none; see LocalDatabase.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    home: str = ""

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

    @property
    def path(self) -> str:
        """Its name in statements that halfmq runs."""
        return placed(self.name, self.home)

    def sql(self, dialect: str) -> str:
        """The statements that create the table where it does not exist, separated by semicolons.

        Args:
            dialect: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.

        Raises:
            ConfigurationError: There is no such dialect.
        """
        return ";\n".join(self.statements(dialect, self.name))

    def statements(self, dialect: str, name: str) -> list[str]:
        """The same, one by one, for a table of a name."""
        database = dialect_of(dialect)
        lines = [
            f"  {column.name} {database.types[column.kind.value]}{'' if column.nullable else ' NOT NULL'}"
            for column in self.columns
        ]
        if not (database.serial_is_key and any(column.kind is Kind.SERIAL for column in self.columns)):
            lines.append(f"  PRIMARY KEY ({', '.join(self._key())})")
        if database.inline_indexes:
            lines += [
                f"  {'UNIQUE ' if index.unique else ''}KEY {self.index_name(index.name)} ({', '.join(index.columns)})"
                for index in self.indexes
            ]
        body = ",\n".join(lines)
        statements = [f"CREATE TABLE IF NOT EXISTS {name} (\n{body}\n){database.table_options}"]
        if not database.inline_indexes:
            statements += [
                database.create_index(name, self.index_name(each.name), each.columns, unique=each.unique)
                for each in self.indexes
            ]
        return statements

    def create(self, local: LocalTransaction) -> None:
        """Creates the table where it does not exist, in a transaction that has begun.

        Raises:
            ConfigurationError: This user, or this server, does not create it.
        """
        try:
            for statement in self.statements(local.dialect.name, self.path):
                local.execute(statement)
        except Exception as error:
            if local.dialect.failure_of(error) not in {Failure.NO_TABLE, Failure.READ_ONLY, Failure.WRONG_SQL}:
                raise
            msg = (
                f"the table {self.name} cannot be created on this connection: grant its user CREATE there, or run the "
                f"statements of sql() as another user, in a migration for example ({first_line_of(error)})"
            )
            raise ConfigurationError(msg, field="table") from error

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
        key = self._key()
        parts: list[Any] = [
            sa.Column(
                column.name,
                sqlalchemy_types.TYPES[column.kind.value],
                primary_key=column.name in key,
                nullable=column.nullable,
                autoincrement=column.kind is Kind.SERIAL,
            )
            for column in self.columns
        ]
        parts += [sa.Index(self.index_name(each.name), *each.columns, unique=each.unique) for each in self.indexes]
        return sa.Table(
            name,
            metadata,
            *parts,
            schema=schema or None,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
            sqlite_autoincrement=any(column.kind is Kind.SERIAL for column in self.columns),
        )

    def _key(self) -> tuple[str, ...]:
        return self.key or (self.columns[0].name,)

    def index_name(self, name: str) -> str:
        """The name that an index has in the database."""
        return f"{self.name.rpartition('.')[2]}_{name}"


def placed(name: str, home: str) -> str:
    """A table's name with the schema that it is in where it has none; on MySQL and MariaDB."""
    return f"`{home}`.{name}" if home and "." not in name else name


@contextlib.contextmanager
def naming_character(table: str) -> Iterator[None]:
    """Around what writes texts: says how to write one that the connection cannot carry.

    Raises:
        ConfigurationError: The connection's character set lacks one of its characters.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        msg = (
            f"the connection's character set {error.encoding} has no {error.object[error.start]!r}, which is to be "
            f"written into {table}: connect with charset=utf8mb4"
        )
        raise ConfigurationError(msg, field="database") from error


@contextlib.contextmanager
def asking_for(name: str, dialect: Callable[[], Dialect]) -> Iterator[None]:
    """Says how to get a table where the statements inside do not find it.

    Args:
        name: The table.
        dialect: The database, asked after a failure.

    Raises:
        ConfigurationError: There is no such table, or no right to it; or the connection's character set lacks a
            character of what is written.
    """
    try:
        with naming_character(name):
            yield
    except ConfigurationError:
        raise
    except Exception as error:
        if dialect().failure_of(error) is not Failure.NO_TABLE:
            raise
        msg = (
            f"there is no table {name} for this connection, or no right to it: call create_tables(), or "
            "run the statements of sql() in a migration, and grant SELECT, INSERT, UPDATE and DELETE on it "
            f"({first_line_of(error)})"
        )
        raise ConfigurationError(msg, field="table") from error
