"""What connections of drivers tell of their state, those of asyncio too; nothing here asks a server."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AUTOCOMMITS",
    "DRIVERS",
    "KNOWN_URLS",
    "autocommits",
    "driver_of",
    "end_of",
    "in_transaction",
    "is_aborted",
    "place_of",
    "refuse_autocommit",
    "refuse_driver",
    "refuse_unfinished",
    "session_of",
    "stay_in_session",
    "with_places",
]

DRIVERS = {
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "sqlite3": "sqlite",
}
"""The database of each driver, by the package of its connections."""

_OF_SQLALCHEMY = {
    "pymysql": "mysql+pymysql",
    "mysqldb": "mysql+mysqldb",
    "aiomysql": "mysql+aiomysql",
    "psycopg": "postgresql+psycopg",
    "psycopg2": "postgresql+psycopg2",
    "asyncpg": "postgresql+asyncpg",
    "pysqlite": "sqlite",
    "aiosqlite": "sqlite+aiosqlite",
}
"""URLs of SQLAlchemy by its names of drivers: those whose state and errors are known here."""

KNOWN_URLS = f"take one with {', '.join(_OF_SQLALCHEMY.values())} (the form for MariaDB begins with mariadb)"
AUTOCOMMITS = (
    "the connection commits each statement by itself (autocommit); what belongs to your transaction needs one: begin "
    "it, or switch autocommit off"
)
_UNREAD = (
    "rows of this connection are still being read one by one (yield_per, stream_results, SSCursor), and the driver "
    "would drop those that are left: read them to their end first, or read them on another connection"
)
_PIPELINE = (
    "the connection is in pipeline mode, in which it is not known what a statement did: leave connection.pipeline() "
    "before the messages are written"
)

_MYSQLCLIENT = "MySQLdb"
_PLACE = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_IN_TRANSACTION = 1
"""MySQL's SERVER_STATUS_IN_TRANS."""
_IDLE = 0
"""PQTRANS_IDLE of PostgreSQL's client library."""
_ABORTED = 3
"""PQTRANS_INERROR."""
_NO_PIPELINE = 0
"""PQ_PIPELINE_OFF."""


def in_transaction(connection: Any) -> bool | None:
    """Whether a connection has a transaction open; None: the driver does not tell."""
    status = getattr(connection, "server_status", None)  # PyMySQL, aiomysql
    if status is not None:
        return bool(status & _IN_TRANSACTION)
    if hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        return bool(connection.in_transaction)
    if hasattr(connection, "info") and hasattr(connection.info, "transaction_status"):  # psycopg, psycopg2
        return int(connection.info.transaction_status) != _IDLE
    if hasattr(connection, "is_in_transaction"):  # asyncpg
        return bool(connection.is_in_transaction())
    return None


def session_of(connection: Any) -> tuple[object, ...] | None:
    """What tells a server's session from one that was opened in its place; None: the driver has nothing for it.

    With mysqlclient, which does not tell whether a transaction is open, whether it commits each statement by itself
    belongs to it: a session that is new, or was reset, does so on most servers.
    """
    if not callable(getattr(connection, "thread_id", None)):
        return None
    try:
        tells = in_transaction(connection) is not None
        return connection.thread_id(), None if tells else autocommits(connection)
    except Exception:
        return ()  # It is closed.


def stay_in_session(connection: Any) -> None:
    """Has a connection of mysqlclient open no other session by itself, which it does after ``ping(True)``.

    What ran before is then rolled back, and what follows is committed statement by statement, without an error. It
    costs a round trip.
    """
    if driver_of(connection) == _MYSQLCLIENT:
        # Since 2.2.1 without an argument, which earlier versions need.
        connection.ping(*(() if _has_plain_ping() else (False,)))


@functools.cache
def _has_plain_ping() -> bool:
    return tuple(sys.modules[_MYSQLCLIENT].version_info[:3]) >= (2, 2, 1)


def is_aborted(connection: Any) -> bool:
    """Whether PostgreSQL has aborted the transaction of a connection, as far as the driver tells."""
    info = getattr(connection, "info", None)
    return int(getattr(info, "transaction_status", _IDLE)) == _ABORTED


def autocommits(connection: Any) -> bool:
    """Whether a connection commits each statement by itself where no transaction was begun."""
    if hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient, aiomysql
        return bool(connection.get_autocommit())
    if hasattr(connection, "in_transaction"):  # sqlite3, aiosqlite
        return connection.isolation_level is None
    return getattr(connection, "autocommit", False) is True


def refuse_driver(dialect: Any) -> None:
    """Refuses an engine whose driver is not known: neither is what its connections and its errors tell.

    Args:
        dialect: That of the engine.

    Raises:
        ConfigurationError: It is not.
    """
    if dialect.driver not in _OF_SQLALCHEMY:
        msg = f"engines with URLs of {dialect.name}+{dialect.driver} cannot be used: {KNOWN_URLS}"
        raise ConfigurationError(msg, field="database")


def refuse_autocommit(connection: Any) -> None:
    """Refuses a connection that would commit the next statement by itself.

    Raises:
        ConfigurationError: It would, as far as the driver tells.
    """
    if not in_transaction(connection) and autocommits(connection):
        raise ConfigurationError(AUTOCOMMITS, field="database")


def refuse_unfinished(connection: Any) -> None:
    """Refuses a connection on which a statement would disturb what the user is doing, or have no answer yet.

    PyMySQL and aiomysql drop the rest of an unbuffered result in silence; mysqlclient raises an error of its own, and
    other drivers keep both apart.

    Raises:
        ConfigurationError: It is one.
    """
    if getattr(getattr(connection, "_result", None), "unbuffered_active", False) is True:
        raise ConfigurationError(_UNREAD, field="database")
    info = getattr(connection, "info", None)
    if int(getattr(info, "pipeline_status", _NO_PIPELINE)) != _NO_PIPELINE:
        raise ConfigurationError(_PIPELINE, field="database")


def place_of(connection: Any) -> tuple[str, ...] | None:
    """The server and the database that a plain connection was opened to; None: the driver does not keep them."""
    info = getattr(connection, "info", None)
    if info is not None and hasattr(info, "dbname"):  # psycopg, psycopg2
        # With the options, which may set a search_path.
        dsn = info.dsn if hasattr(info, "dsn") else info.dsn_parameters
        return str(info.host), str(info.port), str(info.dbname), str(dsn)
    if hasattr(connection, "unix_socket") and hasattr(connection, "db"):  # PyMySQL
        return tuple(str(getattr(connection, name)) for name in ("host", "port", "unix_socket", "db"))
    return None


def end_of(connection: Any) -> Callable[[], object] | None:
    """What ends a connection at once, whatever it is waiting for; None: its driver has nothing of the kind."""
    own = getattr(connection, "pgconn", None)  # psycopg, whose close() is to be awaited
    for found in (
        getattr(connection, "terminate", None),
        getattr(connection, "close", None),
        getattr(own, "finish", None),
    ):
        if found is not None and not inspect.iscoroutinefunction(found):
            return found  # type: ignore[no-any-return]
    return None


def driver_of(given: object) -> str | None:
    """The driver of a DB-API connection; None: it is not one of those that are known."""
    # mypy takes the __hash__ of objects of a class for that of the class.
    return _driver_of_class(type(given))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _driver_of_class(kind: type) -> str | None:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in DRIVERS and base.__name__.lower() == "connection":
            return package
    return None


@functools.lru_cache(maxsize=256)
def with_places(sql: str) -> str:
    """A statement that has its values as ``:name``, as drivers of servers take it."""
    return _PLACE.sub(r"%(\1)s", sql.replace("%", "%%"))
