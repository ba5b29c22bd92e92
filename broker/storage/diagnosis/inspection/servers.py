"""Common to MySQL and MariaDB: the information schema, EXPLAIN, grants, InnoDB's transactions."""

from __future__ import annotations

import re
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pymysql
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateColumn

from broker.storage.diagnosis.inspection.base import (
    CannotLook,
    Inspection,
    PlanStep,
    StoredColumn,
    StoredIndex,
    StoredTable,
)
from broker.storage.engine.dialects import failure_of
from broker.storage.engine.failures import Failure
from broker.storage.engine.statements import marks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import sqlalchemy as sa

    from broker.storage.engine.session import Session
    from broker.storage.engine.statements import Row

SECOND = 1_000_000
MOST_TRANSACTIONS = 1000
"""Open transactions that are looked at, the oldest first."""
DENIED = {1044, 1142, 1143, 1227}
_NO_TABLE = 1146
_SCANS = {"ALL", "index"}
_WHERE = "table_schema = DATABASE() AND table_name IN ({})"
_DIALECT = mysql.dialect()


class OpenTransaction(NamedTuple):
    """A database transaction that did not end yet. Times are microseconds.

    Attributes:
        number: InnoDB's number of it.
        session_id: the session's; 0: it has none, as a prepared XA transaction after a restart.
        age: since it began.
        rows: about how many rows it has locked or changed.
    """

    number: int
    session_id: int
    age: int
    rows: int


class OpenSession(NamedTuple):
    """A session of the server: its user, where from, and its default database."""

    user: str
    host: str
    database: str


class LockWait(NamedTuple):
    """A database transaction that waits for one which has locked what it needs. `waits` is microseconds."""

    waiting: int
    blocking: int
    waits: int


@contextmanager
def needing(session: Session, right: str, where: str) -> Iterator[None]:
    """Converts the server's refusal to CannotLook.

    Args:
        session: the session.
        right: what is needed.
        where: what it is needed on, as in GRANT.
    """
    try:
        yield
    except pymysql.err.MySQLError as error:
        if error.args[0] not in DENIED:
            raise
        cause = f"the database user {account(session)} lacks {right} on {where}"
        raise CannotLook(cause, f"GRANT {right} ON {where} TO {account(session)}") from error


def account(session: Session) -> str:
    """The database user, as in GRANT."""
    user, _, host = str(session.fetch("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{user}'@'{host}'"


def variables(session: Session, *names: str, scope: str = "GLOBAL") -> dict[str, str]:
    """The existing ones of some variables, by their names in lower case."""
    found = session.fetch(f"SHOW {scope} VARIABLES WHERE variable_name IN ({marks(names)})", names)
    return {str(name).lower(): str(value) for name, value in found}


class ServerInspection(Inspection):
    """Questions to a server.

    Attributes:
        ended: the server's numbers of errors of statements that took too long.
    """

    ended: ClassVar[frozenset[int]]

    def is_limit(self, error: BaseException) -> bool:
        """The server's own limit, or the driver's while the server stands still."""
        if isinstance(error, TimeoutError):
            return True
        if not isinstance(error, pymysql.err.MySQLError) or not error.args:
            return False
        return error.args[0] in self.ended or "timed out" in str(error)

    def is_denied(self, error: BaseException) -> bool:
        """By the server's number of the error."""
        return isinstance(error, pymysql.err.MySQLError) and bool(error.args) and error.args[0] in DENIED

    def has_table(self, session: Session, name: str) -> bool:
        """By a query: the information schema has no table on which the user has no right."""
        try:
            session.fetch(f"SELECT 1 FROM {name} LIMIT 0")
        except pymysql.err.MySQLError as error:
            if error.args[0] in DENIED:
                database = session.fetch("SELECT DATABASE()")[0][0]
                cause = f"the database user {account(session)} lacks SELECT on the table {name}, or there is none"
                raise CannotLook(cause, f"GRANT SELECT ON `{database}`.{name} TO {account(session)}") from error
            if error.args[0] != _NO_TABLE:
                raise
            return False
        return True

    @abstractmethod
    def history(self, session: Session) -> int:
        """Length of the history list: transactions whose old rows are kept because another one may still read them."""

    @abstractmethod
    def lock_waits(self, session: Session) -> list[LockWait]:
        """Who waits for whose row locks."""

    @abstractmethod
    def sessions_table(self, session: Session) -> str:
        """The table of the server's sessions."""

    def transactions(self, session: Session) -> list[OpenTransaction]:
        """The open transactions, the oldest first."""
        # Their times are in the time zone of the server's machine.
        session.run("SET SESSION time_zone = 'SYSTEM'")
        with needing(session, "PROCESS", "*.*"):
            found = session.fetch(
                "SELECT trx_id, trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW()),"
                " trx_rows_locked + trx_rows_modified FROM information_schema.innodb_trx"
                f" ORDER BY trx_started LIMIT {MOST_TRANSACTIONS}"
            )
        return [
            OpenTransaction(int(number), int(own), max(0, int(age or 0)) * SECOND, int(rows))
            for number, own, age, rows in found
        ]

    def sessions(self, session: Session, ids: Sequence[int]) -> dict[int, OpenSession]:
        """Some of the server's sessions, by number."""
        query = f"SELECT id, user, host, db FROM {self.sessions_table(session)} WHERE id"
        with needing(session, "PROCESS", "*.*"):
            found = session.fetch_in(query, sorted(set(ids)))
        return {int(own): OpenSession(user or "", host or "", database or "") for own, user, host, database in found}

    def views(self, session: Session, names: Sequence[str]) -> set[str]:
        """By the information schema."""
        where = _WHERE.format(marks(names))
        return {
            str(row[0])
            for row in session.fetch(f"SELECT table_name FROM information_schema.views WHERE {where}", names)
        }

    def tables(self, session: Session, names: Sequence[str]) -> dict[str, StoredTable]:
        """By the information schema."""
        where = _WHERE.format(marks(names))
        found = {
            name: StoredTable(engine or "")
            for name, engine in session.fetch(
                f"SELECT table_name, engine FROM information_schema.tables WHERE {where}", names
            )
        }
        for table, name, kind, nullable, default, collation, extra in session.fetch(
            "SELECT table_name, column_name, column_type, is_nullable, column_default, collation_name, extra"
            f" FROM information_schema.columns WHERE {where} ORDER BY ordinal_position",
            names,
        ):
            found[table].columns[name] = StoredColumn(
                plain_type(_text(kind)),
                nullable == "YES",
                _default(default),
                collation or "",
                "auto_increment" in str(extra).lower(),
            )
        for table, name, column, several in session.fetch(
            "SELECT table_name, index_name, column_name, non_unique FROM information_schema.statistics"
            f" WHERE {where} ORDER BY table_name, index_name, seq_in_index",
            names,
        ):
            before = found[table].indexes.get(name, StoredIndex((), not several))
            found[table].indexes[name] = StoredIndex((*before.columns, column), before.unique)
        return found

    def plan(self, session: Session, sql: str, values: Row) -> list[PlanStep]:
        """By EXPLAIN. Without the locking clause: for a lookup by key it would wait for the row."""
        plain = sql.removesuffix(session.dialect.for_update)
        found = session.fetch(f"EXPLAIN FORMAT=TRADITIONAL {plain}", values)
        places = {column[0].lower(): at for at, column in enumerate(session.cursor.description)}
        return [
            PlanStep(row[places["table"]], row[places["key"]], row[places["type"]] in _SCANS)
            for row in found
            if row[places["table"]] is not None
        ]

    def type_of(self, column: sa.Column[Any]) -> str:
        """The type's name in CREATE TABLE."""
        return plain_type(column.type.compile(dialect=_DIALECT))

    def column_repair(self, table: str, column: sa.Column[Any], *, missing: bool) -> str:
        """ALTER TABLE."""
        definition = str(CreateColumn(column).compile(dialect=_DIALECT))
        return f"ALTER TABLE {table} {'ADD' if missing else 'MODIFY'} COLUMN {definition}"

    def lacks(self, session: Session, right: str, name: str, column: str) -> str | None:
        """The right on rows of a table that the user lacks for what needs this right; empty if it lacks none.

        EXPLAIN of a statement needs the same rights, however they were granted, and changes nothing.

        Args:
            session: of the user.
            right: SELECT, INSERT, UPDATE or DELETE.
            name: of the table.
            column: of the table.

        Returns:
            None if there is no such table, though the user would have rights on it.
        """
        sql = {
            "SELECT": f"SELECT * FROM {name} WHERE 1 = 0",
            "INSERT": f"INSERT INTO {name} SELECT * FROM {name} WHERE 1 = 0",
            "UPDATE": f"UPDATE {name} SET {column} = {column} WHERE 1 = 0",
            "DELETE": f"DELETE FROM {name} WHERE 1 = 0",
        }[right]
        try:
            session.fetch(f"EXPLAIN {sql}")
        except pymysql.err.MySQLError as error:
            if error.args[0] in DENIED:
                refused = re.match(r"([A-Z]+)\b.* command denied", str(error.args[-1]))
                return refused[1] if refused else right
            if self.is_limit(error) or failure_of(error) is Failure.LOST:
                raise
            # Rights are looked at first: what it is refused for otherwise is not a matter of them.
            return None if error.args[0] == _NO_TABLE else ""
        return ""

    def granted(self, session: Session, database: str) -> set[str]:
        """What the user, with its active roles, may do with all tables of a database; ALL PRIVILEGES for everything."""
        rights: set[str] = set()
        for (line,) in session.fetch("SHOW GRANTS"):
            found = re.match(r"GRANT (.+?) ON (?:TABLE )?(\*|`(?:[^`]|``)+`)\.\* TO ", str(line))
            if found and (found[2] == "*" or _matches(found[2], database)):
                rights |= {right.strip() for right in found[1].split(",")}
        return rights


def plain_type(text: str) -> str:
    """A type in the one form of both servers: MariaDB tells how wide numbers are shown."""
    return re.sub(r"\b(bigint|int|smallint|tinyint|mediumint)\(\d+\)", r"\1", text.lower()).replace("integer", "int")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _default(text: Any) -> str | None:
    # MariaDB writes the one that every column without a default has.
    return None if text is None or _text(text) == "NULL" else _text(text).strip("'")


def _matches(pattern: str, database: str) -> bool:
    """Whether a database is of a pattern of GRANT, in which % and _ stand for others unless they are escaped."""
    text = pattern[1:-1].replace("``", "`")
    parts = re.findall(r"\\.|.", text)
    as_regex = "".join({"%": ".*", "_": "."}.get(part) or re.escape(part.removeprefix("\\")) for part in parts)
    return text == database or re.fullmatch(as_regex, database) is not None
