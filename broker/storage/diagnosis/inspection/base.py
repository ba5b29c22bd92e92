"""What is asked of every database, in one form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from broker.ports.diagnosis import Finding
    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Row
    from broker.storage.tables.naming import TableNames

PRIMARY = "PRIMARY"
"""The name of a primary key, as an index."""


class CannotLook(Exception):
    """Something cannot be looked at: the database user may not, or the server does not record it."""

    def __init__(self, cause: str, remedy: str, found: Sequence[Finding] = ()) -> None:
        """Takes the cause, the remedy, and what was found of the rest."""
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy
        self.found = found


class NoTables(CannotLook):
    """There are no tables of this program's version to look at.

    Attributes:
        hidden: whether it is not known: the database user may not read the version.
    """

    def __init__(self, cause: str, remedy: str, found: Sequence[Finding] = (), *, hidden: bool = False) -> None:
        """Takes what CannotLook does, and whether it is not known."""
        super().__init__(cause, remedy, found)
        self.hidden = hidden


class PlanStep(NamedTuple):
    """How a statement reaches one of its tables.

    Attributes:
        table: the table's alias in the statement, or its name.
        key: the index that is used; PRIMARY for the primary key; None: none.
        scans: whether all of the table, or of an index, is read.
    """

    table: str
    key: str | None
    scans: bool


class StoredColumn(NamedTuple):
    """A column as it is in the database.

    Attributes:
        type: as `Inspection.plain_type` writes it.
        nullable: whether it may be NULL.
        default: the text of its default; None: there is none.
        collation: of a text; empty if the database has none.
        numbered: whether the database generates its values.
    """

    type: str
    nullable: bool
    default: str | None
    collation: str = ""
    numbered: bool = False


class StoredIndex(NamedTuple):
    """An index as it is in the database: its columns, and whether it is unique."""

    columns: tuple[str, ...]
    unique: bool


@dataclass(slots=True)
class StoredTable:
    """A table as it is in the database; the primary key is the index PRIMARY. `engine` is empty where there is one."""

    engine: str = ""
    columns: dict[str, StoredColumn] = field(default_factory=dict)
    indexes: dict[str, StoredIndex] = field(default_factory=dict)


class Inspection(ABC):
    """Questions to a database about itself."""

    @abstractmethod
    def limit(self, session: Session, seconds: float) -> None:
        """Has the database end each statement of this session that takes longer."""

    @abstractmethod
    def is_limit(self, error: BaseException) -> bool:
        """Whether a statement was ended because it took too long."""

    @abstractmethod
    def has_table(self, session: Session, name: str) -> bool:
        """Whether there is a table, by its name in the database.

        Raises:
            CannotLook: the database user may not read it.
        """

    @abstractmethod
    def tables(self, session: Session, names: Sequence[str]) -> dict[str, StoredTable]:
        """The existing ones of these tables, by name; without those that the database user has no right on."""

    @abstractmethod
    def views(self, session: Session, names: Sequence[str]) -> set[str]:
        """The existing ones of these views."""

    def is_denied(self, error: BaseException) -> bool:
        """Whether the database user may not do something."""
        del error
        return False

    @abstractmethod
    def plan(self, session: Session, sql: str, values: Row) -> list[PlanStep]:
        """How the database would run a statement; it is not run."""

    @abstractmethod
    def type_of(self, column: sa.Column[Any]) -> str:
        """The type that a column must have here, as `StoredColumn.type` has it."""

    @abstractmethod
    def column_repair(self, table: str, column: sa.Column[Any], *, missing: bool) -> str:
        """What adds a missing column, or makes it what it must be."""

    def index_name(self, names: TableNames, name: str) -> str:
        """The name of an index in the database."""
        del names
        return name
