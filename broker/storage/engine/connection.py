"""Connecting: URLs, timeouts, session settings, and what a driver's error means."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import sqlalchemy as sa
from pymysql.constants import CLIENT
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from broker.errors import ConfigurationError
from broker.storage.engine.availability import Availability
from broker.storage.engine.dialect import MARIADB, MYSQL, SQLITE, Dialect
from broker.storage.engine.driver import QuickConnection
from broker.storage.engine.session import Session
from broker.storage.tables.naming import TableNames

CONNECT_TIMEOUT = 5.0
LOGIN_TIMEOUT = 10.0
"""Seconds to wait for each answer of a server that took a connection, until its session is ready."""
LONGEST_IDLE = 600.0
IN_MEMORY = ":memory:"
"""As the file of SQLite: a database of this process, which ends with it."""
_SHORTEST = 1.0
_USED_AT = "used_at"
_VANISHED_AFTER = 60
"""Seconds until a server that does not even take notice counts as gone, for who has no other limit."""
LOOPBACK = {None, "127.0.0.1", "localhost", "::1"}
DEFAULT_ANSWER_TIMEOUT = 30.0
HOLD_LIMIT = 5
"""Seconds that a session may leave a database transaction open without a word, before the server ends it.

A broker that is stopped, or cut off, holds others up for as long. One that is well and needs longer between two
statements does its work again.
"""

# One round trip at connect; the same words on MySQL and MariaDB.
_SERVER_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION innodb_lock_wait_timeout = 5",
)
# What ends the session of a broker that fell silent: in the middle of sending, of reading, or between two statements.
# MySQL knows no limit for idle transactions, so there a session that writes may not be idle at all for longer.
_SILENCE = "SET SESSION net_read_timeout = {0}, net_write_timeout = {0}"
_IDLE_TRANSACTION = {"mariadb": "idle_transaction_timeout", "mysql": "wait_timeout"}


class Trouble(Enum):
    """What a driver's error means for the work that met it."""

    RETRY = auto()
    """Rolled back by the database; the same work may succeed at once (deadlock, lock wait)."""
    LOST = auto()
    """The connection is gone; whether a COMMIT took effect is not known."""
    READ_ONLY = auto()
    """The server does not take writes now; another one may."""
    FULL = auto()
    """No space left for the database."""
    DUPLICATE = auto()
    """A key exists."""
    OTHER = auto()
    """Something about the work itself."""


_SERVER_TROUBLE = {
    **dict.fromkeys((1205, 1213, 1020, 3572), Trouble.RETRY),
    **dict.fromkeys((1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031), Trouble.LOST),
    **dict.fromkeys((2002, 2003, 2006, 2012, 2013, 2014, 2055), Trouble.LOST),
    **dict.fromkeys((1040, 1203, 1226), Trouble.LOST),
    # A log-in that is refused while the broker runs: an administrator is at work, and may be done in a moment.
    **dict.fromkeys((1044, 1045, 1049, 1129, 1130, 1698, 1820, 1862, 3118, 4151), Trouble.LOST),
    **dict.fromkeys((1290, 1792, 1836), Trouble.READ_ONLY),
    **dict.fromkeys((1021, 1026, 1114, 3019), Trouble.FULL),
    1062: Trouble.DUPLICATE,
}
_LOCK_WAITS = {1205, 3572}
_SQLITE_TROUBLE = {
    "SQLITE_BUSY": Trouble.RETRY,
    "SQLITE_LOCKED": Trouble.RETRY,
    "SQLITE_FULL": Trouble.FULL,
    "SQLITE_IOERR": Trouble.FULL,
    "SQLITE_READONLY": Trouble.READ_ONLY,
    "SQLITE_CANTOPEN": Trouble.LOST,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Trouble.DUPLICATE,
    "SQLITE_CONSTRAINT_UNIQUE": Trouble.DUPLICATE,
}


def trouble_of(error: BaseException) -> Trouble:
    """What an error raised by a session means."""
    if isinstance(error, pymysql.err.InterfaceError | ConnectionError | TimeoutError):
        return Trouble.LOST
    if isinstance(error, pymysql.err.MySQLError):
        code = error.args[0] if error.args else 0
        if not isinstance(code, int) and isinstance(error, pymysql.err.InternalError | pymysql.err.OperationalError):
            # The driver's own words: the packets do not fit together, as when the server gave up a log-in, or ended a
            # session, while this process stood still.
            return Trouble.LOST
        return _SERVER_TROUBLE.get(code, Trouble.OTHER)
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        return _SQLITE_TROUBLE.get(name) or _SQLITE_TROUBLE.get("_".join(name.split("_")[:2]), Trouble.OTHER)
    if isinstance(error, sa.exc.TimeoutError):
        return Trouble.LOST
    return Trouble.OTHER


def waited_in_vain(error: BaseException) -> bool:
    """Whether somebody else kept a row locked for longer than one waits."""
    return isinstance(error, pymysql.err.MySQLError) and bool(error.args) and error.args[0] in _LOCK_WAITS


def is_database_error(error: BaseException) -> bool:
    """Whether the error came from the database, not from the code around it."""
    return isinstance(
        error, pymysql.err.Error | sqlite3.Error | ConnectionError | TimeoutError | sa.exc.SQLAlchemyError
    )


def parse_url(text: str) -> URL:
    """A database URL, checked.

    Raises:
        ConfigurationError: not a URL, or of a database halfmq does not run on.
    """
    examples = "use mysql://user:password@host:3306/database, or sqlite:///path/to/file"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"The database URL cannot be read; {examples}.", field="database") from None
    backend = url.get_backend_name()
    if backend not in {"mysql", "mariadb", "sqlite"}:
        raise ConfigurationError(f"The database {backend!r} is not supported; {examples}.", field="database")
    if not url.database:
        what = "file" if backend == "sqlite" else "database"
        raise ConfigurationError(f"The database URL names no {what}; {examples}.", field="database")
    return url


def _notice_silence(connection: Any, seconds: int) -> None:
    """Has the kernel end a connection whose other end does not even take notice of what is sent; it is gone."""
    own = connection._sock
    if own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    for name, value in (
        ("TCP_USER_TIMEOUT", seconds * 1000),
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):  # Not all systems have all of them.
            own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _keep_a_log(connection: sqlite3.Connection, wait: float) -> None:
    """Switches to the write-ahead log. Two that do so with a new file do not wait for each other by themselves."""
    until = time.monotonic() + wait
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if trouble_of(error) is not Trouble.RETRY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


class Database:
    """A pool of sessions on one database."""

    def __init__(
        self,
        url: str | URL,
        *,
        answer_timeout: float = DEFAULT_ANSWER_TIMEOUT,
        pool_size: int = 16,
        quick: bool = True,
        hold_limit: int = 0,
        table_prefix: str = "",
    ) -> None:
        """Connects once to learn which database it is.

        Args:
            url: mysql://, mariadb:// or sqlite:/// URL.
            answer_timeout: seconds to wait for the server's answer to one statement.
            pool_size: connections kept open for use by several threads.
            quick: take rows apart in the quicker way; otherwise as the driver does by itself.
            hold_limit: seconds that a session may keep a database transaction open in silence before the server ends
                it; 0 for as long as the server allows by itself.
            table_prefix: what the names of all tables begin with.

        Raises:
            ConfigurationError: the URL is wrong, or the server refuses this user.
            Exception: the driver's own error when the server cannot be reached.
        """
        self.url = parse_url(url) if isinstance(url, str) else url
        self._answer_timeout = answer_timeout
        self._quick = quick
        self._hold_limit = hold_limit
        self.names = TableNames(table_prefix)
        self._connecting = threading.local()
        self.availability = Availability()
        embedded = self.url.get_backend_name() == "sqlite"
        self.in_memory = embedded and self.url.database == IN_MEMORY
        # What is in memory is there for as long as a connection to it is open.
        self._memory = self._connect_memory() if self.in_memory else None
        creator = self._connect_embedded if embedded else partial(self._connect_server, hold_limit=hold_limit)
        self._pool = QueuePool(creator, pool_size=pool_size, max_overflow=pool_size, timeout=10, reset_on_return=None)
        self.version = ""
        self.dialect: Dialect = SQLITE if embedded else self._recognise_server()

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    def idle_limit(self, *, reading: bool = False) -> float:
        """Seconds after which a session that was not used is not used again: the server may be about to end it."""
        return self._hold_limit / 2 if self._hold_limit and self.dialect is MYSQL and not reading else LONGEST_IDLE

    def session(
        self,
        *,
        reading: bool = False,
        within: float = LOGIN_TIMEOUT,
        answer_timeout: float | None = None,
        lock_wait: int | None = None,
    ) -> Session:
        """A session of its own; give it back with `release` or `discard`.

        Args:
            reading: every statement stands for itself, so there is nothing to commit. Under READ COMMITTED, which all
                sessions have, statements that only read see the same either way.
            within: seconds that connecting may take.
            answer_timeout: seconds to wait for the answer to a statement, if not those of the database.
            lock_wait: seconds to wait for a row that somebody else holds.
        """
        self._connecting.within = within
        try:
            connection = self._pool.connect()
            while time.monotonic() - connection.info.get(_USED_AT, float("inf")) > self.idle_limit():
                connection.invalidate()
                connection = self._pool.connect()
        finally:
            del self._connecting.within
        session = Session(connection, self.dialect, self.names)
        if self.dialect.embedded:
            return session
        if answer_timeout is not None:
            driver: Any = connection.dbapi_connection
            driver._read_timeout = driver._write_timeout = min(answer_timeout, self._answer_timeout)
        if lock_wait is not None:
            session.run(f"SET SESSION innodb_lock_wait_timeout = {lock_wait:d}")
        if reading:
            if self._hold_limit and self.dialect is MYSQL:
                session.run("SET SESSION wait_timeout = DEFAULT")  # It holds nothing, and may be idle.
            session.connection.autocommit(True)
            session.reading = True
        return session

    def release(self, session: Session) -> None:
        """Gives a healthy session back to the pool; it turns out here when its connection was lost meanwhile."""
        if session.reading:
            try:
                session.connection.autocommit(False)
            except pymysql.err.MySQLError:
                self.discard(session)
                return
        session.connection.info[_USED_AT] = time.monotonic()
        session.connection.close()

    def renew(self, session: Session) -> None:
        """Drops a session that was idle for so long that the server may have ended it."""
        session.connection.invalidate()

    def discard(self, session: Session) -> None:
        """Drops a session whose connection cannot be trusted, and all idle ones, which have met the same fate."""
        session.connection.invalidate()
        self._pool.dispose()
        self._pool = self._pool.recreate()

    def close(self) -> None:
        """Closes all idle connections."""
        self._pool.dispose()
        if self._memory is not None:
            self._memory.close()

    def sqlalchemy_engine(self) -> sa.Engine:
        """An engine for migrations. They wait for an answer as long as it takes: a table may be large."""
        creator = self._connect_embedded if self.dialect.embedded else self._connect_patiently
        name = "sqlite" if self.dialect.embedded else "mysql+pymysql"
        return sa.create_engine(f"{name}://", creator=creator, poolclass=sa.NullPool)

    def _connect_patiently(self) -> Any:
        connection = self._connect_server(hold_limit=0)
        connection._read_timeout = connection._write_timeout = None
        _notice_silence(connection, _VANISHED_AFTER)
        return connection

    def _connect_server(self, *, hold_limit: int) -> Any:
        url = self.url
        within = max(_SHORTEST, min(LOGIN_TIMEOUT, getattr(self._connecting, "within", LOGIN_TIMEOUT)))
        connection = (QuickConnection if self._quick else pymysql.Connection)(
            host=url.host or "127.0.0.1",
            port=url.port or 3306,
            user=url.username,
            password=str(url.password or ""),
            database=url.database,
            charset="utf8mb4",
            connect_timeout=min(CONNECT_TIMEOUT, within),
            # A server that is stopped takes connections, and says nothing.
            read_timeout=within,
            write_timeout=within,
            autocommit=False,
            client_flag=CLIENT.MULTI_STATEMENTS,
            **self._server_options(),
        )
        statements = list(_SERVER_SESSION)
        if hold_limit:
            kind = "mariadb" if "mariadb" in connection.get_server_info().lower() else "mysql"
            statements.append(_SILENCE.format(hold_limit) + f", {_IDLE_TRANSACTION[kind]} = {hold_limit}")
            _notice_silence(connection, hold_limit)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection._read_timeout = connection._write_timeout = self._answer_timeout
        return connection

    def _server_options(self) -> dict[str, Any]:
        options: dict[str, Any] = dict(self.url.query)
        unknown = sorted(set(options) - {"ssl_ca", "ssl_cert", "ssl_key", "unix_socket", "charset"})
        if unknown:
            raise ConfigurationError(
                f"The database URL has options that are not known here: {', '.join(unknown)}; "
                "ssl_ca, ssl_cert, ssl_key and unix_socket are.",
                field="database",
            )
        options.pop("charset", None)
        if self.url.host in LOOPBACK and not any(name.startswith("ssl_") for name in options):
            # The driver would encrypt where the server offers it, which protects nothing on loopback.
            return {**options, "ssl_disabled": True}
        if "ssl_ca" in options:
            # Without it the driver encrypts, but takes any certificate.
            options["ssl_verify_cert"] = True
        return options

    def _connect_memory(self) -> Any:
        """A database that all threads of this process share, and no one else."""
        wait = min(10.0, self._answer_timeout)
        file = f"file:/halfmq-{os.getpid()}-{id(self)}?vfs=memdb"
        connection = sqlite3.connect(file, timeout=wait, isolation_level=None, check_same_thread=False, uri=True)
        connection.execute("PRAGMA journal_mode = MEMORY")
        return connection

    def _connect_embedded(self) -> Any:
        if self.in_memory:
            return self._connect_memory()
        path = Path(str(self.url.database))
        if not path.parent.is_dir():
            raise ConfigurationError(f"The folder {str(path.parent)!r} does not exist; create it.", field="database")
        wait = min(10.0, self._answer_timeout)
        connection = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
        _keep_a_log(connection, wait)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA busy_timeout = {int(wait * 1000)}")
        connection.execute("PRAGMA cache_size = -4096")
        return connection

    def _recognise_server(self) -> Dialect:
        connection = self._pool.connect()
        try:
            cursor = connection.cursor()
            cursor.execute("SELECT VERSION()")
            self.version = str(cursor.fetchone()[0])  # type: ignore[index]
        finally:
            connection.close()
        return MARIADB if "mariadb" in self.version.lower() else MYSQL
