"""What differs between the databases that local transactions run on."""

from __future__ import annotations

import math
import sqlite3
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Dialect", "Failure", "dialect_of", "first_line_of", "storable", "text_of"]


_UNSAFE = "/*M! SET STATEMENT sql_safe_updates = 0 FOR */ "
"""Has MariaDB take a DELETE in the form for several tables, whose key it does not see, where it refuses such ones."""


_DIRTY = "READ-UNCOMMITTED"
_READS_DIRTY = (
    "connections of this database read what is not committed (READ UNCOMMITTED, set by the server, by init_command, by "
    "options of the connection, or by whoever used it last): use READ COMMITTED or REPEATABLE READ"
)


class Failure(Enum):
    """Why a statement failed, as far as it matters here."""

    DUPLICATE = auto()
    """The key exists already."""
    LOCKED = auto()
    """Another transaction kept a lock for longer than the wait."""
    CONFLICT = auto()
    """Deadlock or serialization failure: the same transaction may succeed when it is run again."""
    NO_SAVEPOINT = auto()
    """The transaction has no such savepoint: it is another one."""
    NO_TABLE = auto()
    """There is no such table, or no right to it."""
    WRONG_SQL = auto()
    """There is no such column, or the statement is none."""
    READ_ONLY = auto()
    """The server, or the session, changes nothing: a replica."""
    OTHER = auto()


class Dialect(ABC):
    """One database: types, errors and lock waits."""

    name: str
    table_options = ""
    types: dict[str, str]
    """The type of each kind of column."""
    serial_is_key = False
    """Whether the type of a serial number makes it the primary key."""
    inline_indexes = False
    """Whether CREATE TABLE has the indexes."""
    now: str
    """The expression for the database's time, in microseconds since 1970 (UTC)."""
    skip_locked = ""
    """What has a SELECT pass over rows that another transaction holds; none: there are no such rows."""

    nowait = ""
    """What has a SELECT fail at once where another transaction holds a row that it has not committed; none: it finds no
    such row, and an INSERT of the same key waits for it."""

    no_limit = ""
    """What has a SELECT return all of its rows, whatever limit the session has."""

    keep_existing = ""
    """What has an INSERT leave out a row whose key exists; none: it fails, and the transaction goes on."""

    def wait_in_insert(self, value: str, seconds: float) -> tuple[str, str]:
        """Limits how long one INSERT waits for another transaction that has its key, without a statement more.

        Args:
            value: The place of one of its numbers.
            seconds: The longest wait.

        Returns:
            What stands in that place, and at the end of the statement; as they are where the server has a limit by
            itself.
        """
        return value, ""

    by_key = ""
    """Behind a table's name: has the server use the primary key, also of a small table that it would rather scan."""

    def create_index(self, table: str, name: str, columns: tuple[str, ...], *, unique: bool = False) -> str:
        """The statement for an index where it does not exist."""
        kind = "UNIQUE INDEX" if unique else "INDEX"
        return f"CREATE {kind} IF NOT EXISTS {name} ON {table} ({', '.join(columns)})"

    def by_index(self, name: str) -> str:
        """Behind a table's name: has the server use this index."""
        return ""

    def delete(self, table: str, condition: str) -> str:
        """The statement that deletes rows by their primary key; the condition names the table's columns."""
        return f"DELETE FROM {table} WHERE {condition}"  # noqa: S608 - names that are checked, and numbers

    def delete_ids(self, table: str, column: str, values: list[str]) -> str:
        """The statement that deletes rows by ids that are the primary key, and locks no other row.

        Args:
            table: Its name.
            column: Its primary key, of the kind ID.
            values: Expressions of the ids.
        """
        return f"DELETE FROM {table} WHERE {column} IN ({', '.join(values)})"  # noqa: S608 - names that are checked

    @abstractmethod
    def failure_of_driver(self, error: BaseException) -> Failure | None:
        """What an exception of a driver means; None: it is no driver's."""

    def failure_of(self, error: BaseException) -> Failure:
        """What an exception means; wrappers of SQLAlchemy and Django are looked through."""
        for each in _chain(error):
            failure = self.failure_of_driver(each)
            if failure is not None:
                return failure
        return Failure.OTHER

    def refuse_dirty_reads(self, run: Callable[[str], list[tuple[Any, ...]]]) -> None:
        """Refuses connections that see what is not committed.

        Raises:
            ConfigurationError: They do.
        """
        return

    def may_roll_back(self, error: BaseException, run: Callable[[str], list[tuple[Any, ...]]]) -> bool:
        """Whether a server that failed with this error may have rolled back the whole transaction.

        Args:
            error: The error of a statement.
            run: Runs a query on the same connection.
        """
        return True

    @abstractmethod
    def limit_wait(
        self, run: Callable[[str], list[tuple[Any, ...]]], seconds: float, idle: float | None = None
    ) -> Callable[[], None]:
        """Limits how long statements of the transaction wait for locks, and it for its next statement.

        Args:
            run: Runs a statement and returns its rows.
            seconds: The longest wait for a lock.
            idle: Seconds without a statement after which the server ends the transaction, and the connection with it:
                a process that stands still must not hold locks for hours. None: as the connection is set. SQLite has no
                server that could do so.

        Returns:
            Sets the limits back to what they were; to be called after the transaction.
        """


class MySQL(Dialect):
    """MySQL and MariaDB."""

    name = "mysql"
    table_options = " ENGINE=InnoDB"
    types = {  # noqa: RUF012 - never changed
        "id": "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
        "word": "VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin",
        "serial": "BIGINT AUTO_INCREMENT",
        "number": "BIGINT",
        "name": "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "text": "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "body": "MEDIUMBLOB",
    }
    inline_indexes = True
    by_key = " FORCE INDEX (PRIMARY)"
    no_limit = " LIMIT 18446744073709551615"
    # Without the session's time zone, in which an hour comes twice each year.
    now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    nowait = " FOR UPDATE NOWAIT"
    _CODES = {  # noqa: RUF012
        1062: Failure.DUPLICATE,
        1205: Failure.LOCKED,
        3572: Failure.LOCKED,
        1213: Failure.CONFLICT,
        1020: Failure.CONFLICT,
        1305: Failure.NO_SAVEPOINT,
        1044: Failure.NO_TABLE,
        1046: Failure.NO_TABLE,
        1049: Failure.NO_TABLE,
        1142: Failure.NO_TABLE,
        1143: Failure.NO_TABLE,
        1146: Failure.NO_TABLE,
        1054: Failure.WRONG_SQL,
        1064: Failure.WRONG_SQL,
        1290: Failure.READ_ONLY,
        1792: Failure.READ_ONLY,
        1836: Failure.READ_ONLY,
    }
    _ROLL_BACK = frozenset({1020, 1180, 1181, 1206, 1213, 2006, 2013, 4031})
    _LOCK_WAIT = 1205

    def by_index(self, name: str) -> str:
        """By a hint."""
        return f" FORCE INDEX ({name})"

    def delete(self, table: str, condition: str) -> str:
        """In the form for several tables, the only one that takes a hint on every version."""
        return f"{_UNSAFE}DELETE gone FROM {table} AS gone{self.by_key} WHERE {condition}"

    def delete_ids(self, table: str, column: str, values: list[str]) -> str:
        """By a join, which looks each of them up: a list may be looked up by a scan, which locks others' rows."""
        ids = " UNION ALL ".join(f"SELECT CAST({each} AS CHAR(36) CHARACTER SET ascii) AS id" for each in values)
        return (
            f"{_UNSAFE}DELETE gone FROM ({ids}) AS wanted STRAIGHT_JOIN {table} AS gone{self.by_key}"
            f" ON gone.{column} = wanted.id COLLATE ascii_bin"
        )

    def failure_of_driver(self, error: BaseException) -> Failure | None:
        """By the server's error number, which every driver has as the first argument."""
        code = error.args[0] if error.args else None
        return self._CODES.get(code) if isinstance(code, int) else None

    def refuse_dirty_reads(self, run: Callable[[str], list[tuple[Any, ...]]]) -> None:
        """By the session's level, under the names that MySQL and MariaDB have for it."""
        found = run("SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
        for name, _ in found:
            _refuse_bytes(name)
        if any(str(value) == _DIRTY for _, value in found):
            raise ConfigurationError(_READS_DIRTY, field="database")

    def may_roll_back(self, error: BaseException, run: Callable[[str], list[tuple[Any, ...]]]) -> bool:
        """By the server's error number: deadlock, locks that ran out, a row changed behind a snapshot, a lost server.

        A lock wait that took too long ends one statement, or all with innodb_rollback_on_timeout.
        """
        codes = {each.args[0] for each in _chain(error) if each.args and isinstance(each.args[0], int)}
        if self._LOCK_WAIT in codes and codes.isdisjoint(self._ROLL_BACK):
            try:
                return bool(int(run("SELECT @@innodb_rollback_on_timeout")[0][0]))
            except Exception:
                return True
        return not codes or not codes.isdisjoint(self._ROLL_BACK)

    def limit_wait(
        self, run: Callable[[str], list[tuple[Any, ...]]], seconds: float, idle: float | None = None
    ) -> Callable[[], None]:
        """By variables of the session: whole seconds, at least one.

        Only MariaDB has one for idle transactions; on MySQL the connection is not to be idle for so long at all.
        """
        wanted = {"innodb_lock_wait_timeout": max(1, round(seconds))}
        # One row, also with sql_select_limit; each of the two comments is a part of it on one of the servers.
        ((version, wait, of_connection, *others),) = run(
            "SELECT VERSION(), @@SESSION.innodb_lock_wait_timeout, @@SESSION.wait_timeout"
            " /*M! , @@SESSION.idle_transaction_timeout, @@SESSION.tx_isolation */"
            " /*!50720 , @@SESSION.transaction_isolation */"
        )
        _refuse_bytes(version)
        *of_transaction, level = others
        if level == _DIRTY:
            raise ConfigurationError(_READS_DIRTY, field="database")
        before = {"innodb_lock_wait_timeout": int(wait)}
        if idle is not None:
            name, value = (
                ("idle_transaction_timeout", *of_transaction) if of_transaction else ("wait_timeout", of_connection)
            )
            wanted[name], before[name] = max(1, math.ceil(idle)), int(value)
        _set(run, wanted)
        return lambda: _set(run, before)


class PostgreSQL(Dialect):
    """PostgreSQL."""

    name = "postgresql"
    types = {  # noqa: RUF012
        "id": "VARCHAR(36)",
        "word": "VARCHAR(36)",
        "serial": "BIGSERIAL",
        "number": "BIGINT",
        "name": "VARCHAR(255)",
        "text": "TEXT",
        "body": "BYTEA",
    }
    keep_existing = " ON CONFLICT DO NOTHING"

    def wait_in_insert(self, value: str, seconds: float) -> tuple[str, str]:
        """By a setting that the statement makes, and takes back when the row is there; it has no limit by itself."""
        limit = f"set_config('lock_timeout', '{round(seconds * 1000)}', true)"
        return f"CASE WHEN {limit} IS NULL THEN 0 ELSE {value} END", " RETURNING set_config('lock_timeout', NULL, true)"

    now = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    _STATES = {  # noqa: RUF012
        "23505": Failure.DUPLICATE,
        "55P03": Failure.LOCKED,
        "40001": Failure.CONFLICT,
        "40P01": Failure.CONFLICT,
        "25006": Failure.READ_ONLY,
        "3B001": Failure.NO_SAVEPOINT,
        "25P01": Failure.NO_SAVEPOINT,
        "42501": Failure.NO_TABLE,
        "42P01": Failure.NO_TABLE,
        "3F000": Failure.NO_TABLE,
        "42601": Failure.WRONG_SQL,
        "42703": Failure.WRONG_SQL,
        "42883": Failure.WRONG_SQL,
    }

    def failure_of_driver(self, error: BaseException) -> Failure | None:
        """By SQLSTATE, under the names that psycopg, psycopg2 and asyncpg give it."""
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return self._STATES.get(state) if isinstance(state, str) else None

    def limit_wait(
        self, run: Callable[[str], list[tuple[Any, ...]]], seconds: float, idle: float | None = None
    ) -> Callable[[], None]:
        """By settings of the transaction, which end with it."""
        wanted = self.limits(seconds, idle)
        run("SELECT " + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in wanted.items()))
        return lambda: None

    @staticmethod
    def limits(seconds: float, idle: float | None) -> dict[str, str]:
        """The settings of limit_wait, by name."""
        found = {"lock_timeout": f"{max(1, round(seconds * 1000))}ms"}
        if idle is not None:
            found["idle_in_transaction_session_timeout"] = f"{max(1, round(idle * 1000))}ms"
        return found


class SQLite(Dialect):
    """SQLite: one writer at a time, so the lock is that of the database."""

    name = "sqlite"
    types = {  # noqa: RUF012
        "id": "TEXT",
        "word": "TEXT",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "number": "BIGINT",
        "name": "VARCHAR(255)",
        "text": "TEXT",
        "body": "BLOB",
    }
    serial_is_key = True
    keep_existing = " ON CONFLICT DO NOTHING"
    # To the millisecond, as far as SQLite's clock goes.
    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"

    def create_index(self, table: str, name: str, columns: tuple[str, ...], *, unique: bool = False) -> str:
        """The schema stands before the index's name."""
        schema, dot, table = table.rpartition(".")
        return super().create_index(table, f"{schema}{dot}{name}", columns, unique=unique)

    def by_index(self, name: str) -> str:
        """By its own clause."""
        return f" INDEXED BY {name}"

    def failure_of_driver(self, error: BaseException) -> Failure | None:
        """By the name of the error's code."""
        if not isinstance(error, sqlite3.Error):
            return None
        name = getattr(error, "sqlite_errorname", "")
        if name in {"SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE"}:
            return Failure.DUPLICATE
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Failure.LOCKED
        if "no such savepoint" in str(error):
            return Failure.NO_SAVEPOINT
        if "no such table" in str(error) or "unknown database" in str(error):
            return Failure.NO_TABLE
        return Failure.WRONG_SQL if "no such column" in str(error) or "syntax error" in str(error) else None

    def limit_wait(
        self, run: Callable[[str], list[tuple[Any, ...]]], seconds: float, idle: float | None = None
    ) -> Callable[[], None]:
        """By a setting of the connection; nobody ends an idle transaction."""
        ((before,),) = run("PRAGMA busy_timeout")
        run(f"PRAGMA busy_timeout = {max(1, round(seconds * 1000))}")
        return lambda: _discard(run(f"PRAGMA busy_timeout = {int(before)}"))


_DIALECTS: dict[str, Dialect] = {each.name: each for each in (MySQL(), PostgreSQL(), SQLite())}
_DIALECTS["mariadb"] = _DIALECTS["mysql"]


def _refuse_bytes(value: object) -> None:
    """Refuses connections that give texts as bytes.

    Raises:
        ConfigurationError: They do.
    """
    if isinstance(value, bytes):
        msg = "connections of this database give texts as bytes: leave use_unicode out, or make it 1"
        raise ConfigurationError(msg, field="database")


def text_of(error: BaseException) -> str:
    """What the database says, without the statement that a library adds."""
    return str(getattr(error, "orig", None) or error).strip()


def first_line_of(error: BaseException) -> str:
    """The same, as it fits into another sentence."""
    return text_of(error).partition("\n")[0]


def storable(text: str) -> str:
    """A text as every database stores it: without NUL, and without what JSON can name and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def dialect_of(name: str) -> Dialect:
    """A database by its name: ``mysql``, ``mariadb``, ``postgresql`` or ``sqlite``.

    Raises:
        ConfigurationError: Local transactions do not run on it.
    """
    found = _DIALECTS.get(name)
    if found is None:
        msg = f"local transactions run on MySQL, MariaDB, PostgreSQL and SQLite, not on {name!r}"
        raise ConfigurationError(msg, field="database")
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [getattr(each, "orig", None), each.__cause__]


def _set(run: Callable[[str], list[tuple[Any, ...]]], values: dict[str, int]) -> None:
    run("SET SESSION " + ", ".join(f"{name} = {value}" for name, value in values.items()))


def _discard(rows: object) -> None:
    del rows
