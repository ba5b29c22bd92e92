"""What a check looks at: a session with limits, and what is known of the installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.storage.diagnosis.inspection import INSPECTIONS
from broker.storage.diagnosis.inspection.base import CannotLook, NoTables
from broker.storage.diagnosis.inspection.servers import ServerInspection
from broker.storage.diagnosis.inspection.sqlite import SQLiteInspection
from broker.storage.engine.session import Session
from broker.storage.migrations import newest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.ports.diagnosis import DiagnosisSettings, Finding
    from broker.storage.diagnosis.inspection.base import Inspection
    from broker.storage.engine.connection import Database
    from broker.storage.engine.statements import Answer, Row, Statement

SECOND = 1_000_000
AT_MOST = 1000
"""Rows that are counted at most."""


class TookTooLong(Exception):
    """A check was not done in its time."""


class BoundedSession(Session):
    """A session that runs no statement after a moment."""

    def __init__(self, session: Session, database: Database, until: float, clock: Callable[[], float]) -> None:
        """Takes the session, and the moment in seconds of a clock."""
        super().__init__(session.connection, session.dialect, database.names)
        self.reading = session.reading
        self._until = until
        self._clock = clock

    def run(self, sql: str, values: Row = ()) -> int:
        """Runs a statement."""
        self._still_in_time()
        return super().run(sql, values)

    def execute_all(self, statements: Sequence[Statement]) -> list[Answer]:
        """Runs statements."""
        self._still_in_time()
        return super().execute_all(statements)

    def _still_in_time(self) -> None:
        if self._clock() > self._until:
            raise TookTooLong


@dataclass(frozen=True, slots=True)
class Subject:
    """An installation's database.

    Attributes:
        session: for reading, with limits.
        database: the database.
        settings: what its brokers are set to.
    """

    session: Session
    database: Database
    settings: DiagnosisSettings

    @property
    def inspection(self) -> Inspection:
        """What this kind of database tells about itself."""
        return INSPECTIONS[self.database.dialect.name]

    @property
    def server(self) -> ServerInspection:
        """The same, of a server."""
        found = self.inspection
        if not isinstance(found, ServerInspection):
            raise TypeError(f"{self.database.dialect.name} is no server")
        return found

    @property
    def file(self) -> SQLiteInspection:
        """The same, of SQLite's file."""
        found = self.inspection
        if not isinstance(found, SQLiteInspection):
            raise TypeError(f"{self.database.dialect.name} is no file")
        return found

    def now(self) -> int:
        """The database's time, in microseconds since 1970 (UTC)."""
        return self.session.dialect.now(self.session)

    def version(self) -> str | None:
        """The version of the tables; None if there are none.

        Raises:
            CannotLook: the database user may not read it.
        """
        versions = self.database.names.versions
        if not self.inspection.has_table(self.session, versions):
            return None
        row = self.session.fetch_one(f"SELECT version_num FROM {versions}")
        return str(row[0]) if row else None

    def need_tables(self, found: Sequence[Finding] = ()) -> None:
        """Returns if the tables are those of this version: only then their content can be looked at.

        Args:
            found: what was found without them.

        Raises:
            NoTables: there are none, or those of another version; or the database user may not read it.
        """
        try:
            version = self.version()
        except CannotLook as denied:
            raise NoTables(denied.cause, denied.remedy, found, hidden=True) from denied
        if version == newest():
            return
        if version is None:
            prefix = self.database.names.prefix
            cause = "the database has no tables of halfmq" + (f" with the prefix {prefix}" if prefix else "")
            raise NoTables(cause, "run `halfmq migrate`; or correct the URL or the table prefix", found)
        cause = f"the tables are at version {version}, and this program's are at {newest()}"
        older = version < newest()
        remedy = "run `halfmq migrate`" if older else "use the version of halfmq that the brokers have"
        raise NoTables(cause, remedy, found)

    def some(self, query: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """The first rows of a query, one more than are counted."""
        return self.session.fetch(f"{query} LIMIT {AT_MOST + 1}", values)


def counted(rows: Sequence[Any], one: str, several: str) -> str:
    """The number of rows that `Subject.some` returned, and what they are."""
    if len(rows) == 1:
        return f"1 {one}"
    return f"{f'more than {AT_MOST}' if len(rows) > AT_MOST else len(rows)} {several}"


def lasting(microseconds: float) -> str:
    """A time as people write it."""
    seconds = microseconds / SECOND
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
