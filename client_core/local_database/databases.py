"""The user's database as halfmq opens it itself: for checks and clean-up, on connections of their own."""

from __future__ import annotations

import contextlib
import re
import uuid
from typing import TYPE_CHECKING, Any

from client_core.errors import ConfigurationError
from client_core.local_database.by_dbapi import DbapiTransaction
from client_core.local_database.dialects import Failure, PostgreSQL, dialect_of
from client_core.local_database.drivers import KNOWN_URLS, driver_of, refuse_driver
from client_core.local_database.joining import packages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from client_core.local_database.transactions import LocalTransaction

__all__ = [
    "ANSWER_WITHIN",
    "LocalDatabase",
    "discarding",
    "home_of",
    "identity_of",
    "limits_of",
    "local_database",
    "on",
]

CONNECT_WITHIN = 10
ANSWER_WITHIN = 60
"""Seconds that a connection of an engine made here waits for an answer: longer than MySQL waits for a lock."""
_MYSQL = {"connect_timeout": CONNECT_WITHIN, "read_timeout": ANSWER_WITHIN, "write_timeout": ANSWER_WITHIN}
_LIBPQ = {
    # Only the kernel can tell here: what it sent is not acknowledged, nor is a probe.
    "connect_timeout": CONNECT_WITHIN,
    "tcp_user_timeout": ANSWER_WITHIN * 1000,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
}
_SCHEMA = re.compile(r"[^`:%\\{}?;'\"\x00-\x1f]{1,64}")
"""Names of schemas that can be quoted in statements of every driver."""
_LIMITS: dict[str, dict[str, Any]] = {
    "pymysql": _MYSQL,
    "mysqldb": _MYSQL,
    "aiomysql": {"connect_timeout": CONNECT_WITHIN},
    "psycopg": _LIBPQ,
    "psycopg2": _LIBPQ,
    "asyncpg": {"timeout": CONNECT_WITHIN},
}


class LocalDatabase:
    """Opens transactions of its own on a database."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[LocalTransaction]],
        close: Callable[[], None] | None = None,
        for_work: Callable[[], AbstractContextManager[LocalTransaction]] | None = None,
        capacity: int | None = None,
        known_by: Hashable | None = None,
        home: str = "",
    ) -> None:
        """Takes what opens connections.

        Args:
            opened: Opens one.
            close: Closes those that are kept.
            for_work: Opens one for a user's function; None: as all others.
            capacity: How many there can be at a time, the user's own among them; None: any number.
            known_by: What stands for it where the user's own transactions are on it, too; see LocalTransaction.
            home: On MySQL and MariaDB, the schema that its connections begin in, where that is known; their users may
                leave them in another one (``USE``).
        """
        self.home = home
        self.capacity = capacity
        self.known_by = known_by
        self._opened = opened
        self._close = close
        self._for_work = for_work or opened

    def close(self) -> None:
        """Closes the connections of an engine that was made here."""
        if self._close is not None:
            self._close()

    @contextlib.contextmanager
    def kept(self, idle: float | None = None) -> Iterator[LocalDatabase]:
        """The same database for one thread: with one connection, which stays open until a transaction fails.

        Args:
            idle: Seconds without a statement after which the server may end it, where transactions have a limit of
                waits for locks; None: as it is set. See Dialect.limit_wait.
        """
        database = _Kept(self._opened, idle)
        try:
            yield database
        finally:
            database.drop()

    @contextlib.contextmanager
    def transaction(self, wait: float | None = None, idle: float | None = None) -> Iterator[LocalTransaction]:
        """A transaction: committed at the end of the block, rolled back by an exception.

        Args:
            wait: Seconds to wait for a lock, at most; None: as the connection is set.
            idle: With `wait`, seconds without a statement after which the server ends it; see Dialect.limit_wait.
        """
        with self._opened() as local, on(local, wait, idle):
            yield local

    @contextlib.contextmanager
    def reading(self) -> Iterator[LocalTransaction]:
        """A transaction that reads tables of the user's own, which their SQL names, as if its connection were new.

        Raises:
            ConfigurationError: It reads what is not committed.
        """
        with self.transaction() as local:
            if self.home:
                local.execute(f"USE `{self.home}`")
            local.dialect.refuse_dirty_reads(local.fetch)
            yield local

    @contextlib.contextmanager
    def for_work(self) -> Iterator[LocalTransaction]:
        """A connection on which a user's function runs; the caller begins and ends its transaction."""
        with self._for_work() as local:
            yield local


class _Kept(LocalDatabase):
    """One connection, whose limit of waits for locks is set once, not for each transaction."""

    def __init__(self, opened: Callable[[], AbstractContextManager[LocalTransaction]], idle: float | None) -> None:
        super().__init__(opened)
        self._idle = idle
        self._used = contextlib.ExitStack()
        self._current: LocalTransaction | None = None
        self._wait: float | None = None

    @contextlib.contextmanager
    def transaction(self, wait: float | None = None, idle: float | None = None) -> Iterator[LocalTransaction]:
        try:
            if self._current is None:
                self._current = self._used.enter_context(self._opened())
            local = self._current
            if wait is not None and wait != self._wait:
                with on(local):
                    reset = _limit_session(local, wait, self._idle if idle is None else idle)
                self._wait = wait
                self._used.callback(_reset, local, reset)
            with on(local):
                yield local
        except BaseException as error:
            # Perhaps it is lost, perhaps not as it was before.
            self.drop(error)
            raise

    def drop(self, error: BaseException | None = None) -> None:
        """Gives the connection back as it was; the next transaction takes another one."""
        self._current = self._wait = None
        used, self._used = self._used, contextlib.ExitStack()
        with contextlib.suppress(BaseException):
            used.__exit__(*((None, None, None) if error is None else (type(error), error, error.__traceback__)))


def _limit_session(local: LocalTransaction, seconds: float, idle: float | None) -> Callable[[], object]:
    """As Dialect.limit_wait, for all transactions of the connection; returns what sets it back."""
    if not isinstance(local.dialect, PostgreSQL):
        return local.dialect.limit_wait(local.fetch, seconds, idle)
    wanted = local.dialect.limits(seconds, idle)
    ((*before,),) = local.fetch("SELECT " + ", ".join(f"current_setting('{name}')" for name in wanted))

    def set_all(values: Iterable[object]) -> None:
        settings = (f"set_config('{name}', '{value}', false)" for name, value in zip(wanted, values, strict=True))
        local.fetch("SELECT " + ", ".join(settings))

    set_all(wanted.values())
    return lambda: set_all(before)


def _reset(local: LocalTransaction, reset: Callable[[], object]) -> None:
    if getattr(getattr(local, "_connection", None), "invalidated", False):
        return  # SQLAlchemy would open another one for it.
    with contextlib.suppress(Exception), on(local):
        reset()


@contextlib.contextmanager
def on(local: LocalTransaction, wait: float | None = None, idle: float | None = None) -> Iterator[None]:
    """A transaction on one connection; see LocalDatabase.transaction."""
    local.begin()
    reset: Callable[[], None] | None = None
    try:
        if wait is not None:
            reset = local.dialect.limit_wait(local.fetch, wait, idle)
        yield
        local.commit()
    except BaseException:
        with contextlib.suppress(Exception):
            local.rollback()
        raise
    finally:
        if reset is not None:
            with contextlib.suppress(Exception):
                local.begin()
                reset()
                local.commit()


def identity_of(
    database: LocalDatabase,
    read: Callable[[LocalTransaction], str | None],
    write: Callable[[LocalTransaction, str], object],
) -> str:
    """Which tables these are, by an identity that whoever comes first writes into them.

    Args:
        database: Where to look.
        read: Reads it; None: there is none yet.
        write: Writes it, under a key that can be there once.
    """
    with database.transaction() as local:
        found = read(local)
        local.dialect.refuse_dirty_reads(local.fetch)
    if found is not None:
        return found
    try:
        with database.transaction() as local:
            write(local, str(uuid.uuid4()))
    except Exception as error:
        if local.dialect.failure_of(error) is not Failure.DUPLICATE:
            raise
    with database.transaction() as local:
        return str(read(local))


def local_database(given: object) -> LocalDatabase:
    """The database that an object stands for.

    Args:
        given: A SQLAlchemy Engine, a URL for one, a connection of Django's, or a function that opens a DB-API
            connection.

    Raises:
        ConfigurationError: It is nothing of the kind, or all of its users share one connection.
    """
    if isinstance(given, str):
        engine = _engine_of(given)
        return _of_sqlalchemy(engine, engine.dispose)
    if "sqlalchemy" in packages_of(given):
        return _of_sqlalchemy(given, None)
    if "django" in packages_of(given):
        return _of_django(given)
    if callable(given) and driver_of(given) is None:
        return LocalDatabase(lambda: _fresh(given))
    msg = (
        "database is a SQLAlchemy Engine, a URL for one, a connection of Django's, or a function that opens a new "
        f"connection of PyMySQL, mysqlclient, psycopg or sqlite3, not {type(given).__name__}: checks need connections "
        "of their own"
    )
    raise ConfigurationError(msg, field="database")


def _engine_of(url: str) -> Any:
    try:
        import sqlalchemy as sa  # noqa: PLC0415 - only its users have it
    except ModuleNotFoundError as error:
        msg = "a database URL needs SQLAlchemy: pip install 'halfmq[sqlalchemy]', or give a function that connects"
        raise ConfigurationError(msg, field="database") from error
    with naming_url():
        return sa.create_engine(url, connect_args=limits_of(url))


@contextlib.contextmanager
def naming_url() -> Iterator[None]:
    """Around what makes an engine of a URL.

    Raises:
        ConfigurationError: It cannot be made; says why.
    """
    from sqlalchemy.exc import ArgumentError, InvalidRequestError, NoSuchModuleError  # noqa: PLC0415 - of an extra

    try:
        yield
    except NoSuchModuleError as error:
        msg = f"database is a URL whose driver SQLAlchemy does not know ({error}): {KNOWN_URLS}"
        raise ConfigurationError(msg, field="database") from error
    except ModuleNotFoundError as error:
        msg = f"database is a URL whose driver is not installed ({error}): {KNOWN_URLS}"
        raise ConfigurationError(msg, field="database") from error
    except (ArgumentError, InvalidRequestError, ValueError) as error:
        msg = f"database is no URL that SQLAlchemy can open: {error}"
        raise ConfigurationError(msg, field="database") from error


def limits_of(url: str) -> dict[str, Any]:
    """What has connections of a URL end where the server, or the network before it, goes silent.

    What the URL names itself (``?read_timeout=300``) stays as it is.
    """
    from sqlalchemy.engine import make_url  # noqa: PLC0415 - of an extra

    made = make_url(url)
    return {name: value for name, value in _LIMITS.get(made.get_driver_name(), {}).items() if name not in made.query}


def _of_sqlalchemy(given: Any, close: Callable[[], None] | None) -> LocalDatabase:
    import sqlalchemy as sa  # noqa: PLC0415

    from client_core.local_database.by_sqlalchemy import SqlalchemyTransaction  # noqa: PLC0415
    from client_core.local_database.rolled_back import listen  # noqa: PLC0415

    if not isinstance(given, sa.Engine):
        msg = (
            f"database is the Engine, not {type(given).__name__}: checks need connections of their own"
            if not hasattr(given, "sync_engine")
            else "an AsyncEngine goes to the form for asyncio (AsyncTransactionFence, AsyncAppliedMessages)"
        )
        raise ConfigurationError(msg, field="database")
    if given.dialect.is_async:
        msg = (
            f"{given.dialect.driver} is a driver for asyncio; give its URL to the form for asyncio "
            "(AsyncTransactionFence, AsyncAppliedMessages)"
        )
        raise ConfigurationError(msg, field="database")
    refuse_engine(given)
    listen(given)

    @contextlib.contextmanager
    def opened() -> Iterator[LocalTransaction]:
        local = SqlalchemyTransaction(given, is_own=True)
        try:
            with discarding(local):
                yield local
        finally:
            local.close()

    return LocalDatabase(opened, close, capacity=_capacity_of(given.pool), known_by=given, home=home_of(given))


@contextlib.contextmanager
def discarding(local: LocalTransaction) -> Iterator[None]:
    """Around work on a pool's connection: has nobody use it again where an error may be its own.

    It may be as its last user left it: with LOCK TABLES, another character set, or READ UNCOMMITTED.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - of an extra

    try:
        yield
    except (DBAPIError, UnicodeError, ConfigurationError) as error:
        if not isinstance(error, DBAPIError) or local.dialect.failure_of(error) is Failure.OTHER:
            local.discard()
        raise


def home_of(engine: sa.Engine) -> str:
    """The schema that an engine's URL names, on MySQL and MariaDB; "": none, or one that is not to be quoted."""
    name = engine.url.database or ""
    return name if engine.dialect.name in {"mysql", "mariadb"} and _SCHEMA.fullmatch(name) else ""


def _capacity_of(pool: Any) -> int | None:
    """How many connections a pool gives at a time; None: any number, or it does not say."""
    overflow = getattr(pool, "_max_overflow", -1)
    return None if overflow < 0 else int(pool.size()) + int(overflow)


def refuse_engine(engine: Any) -> None:
    """Refuses engines whose checks would run inside of a local transaction, or see what is not committed.

    Raises:
        ConfigurationError: Its pool has one connection for all, its isolation level is none, its driver is not known.
    """
    import sqlalchemy as sa  # noqa: PLC0415

    dialect_of(engine.dialect.name)
    refuse_driver(engine.dialect)
    if isinstance(engine.pool, sa.pool.StaticPool | sa.pool.SingletonThreadPool | sa.pool.AssertionPool):
        msg = (
            f"the engine's {type(engine.pool).__name__} shares one connection: checks need connections of their own; "
            "for SQLite name a file"
        )
        raise ConfigurationError(msg, field="database")
    level = engine.get_execution_options().get("isolation_level") or engine.dialect._on_connect_isolation_level
    if level == "AUTOCOMMIT":
        msg = (
            "local transactions need an engine that has some: its isolation_level is AUTOCOMMIT; give one without it, "
            'engine.execution_options(isolation_level="READ COMMITTED") for example'
        )
        raise ConfigurationError(msg, field="database")
    if level == "READ UNCOMMITTED":
        msg = (
            "the engine reads what is not committed: its isolation_level is READ UNCOMMITTED; use READ COMMITTED or "
            "REPEATABLE READ"
        )
        raise ConfigurationError(msg, field="database")


def _of_django(given: object) -> LocalDatabase:
    from django.db import connections  # noqa: PLC0415

    from client_core.local_database.by_django import (  # noqa: PLC0415
        DjangoOwnTransaction,
        DjangoTransaction,
        alias_of,
    )

    alias = alias_of(given)
    if alias is None:
        msg = f"database is a connection of Django's (django.db.connection), not {type(given).__name__}"
        raise ConfigurationError(msg, field="database")

    @contextlib.contextmanager
    def opened() -> Iterator[LocalTransaction]:
        local = DjangoOwnTransaction(alias)
        try:
            yield local
        finally:
            local.close()

    @contextlib.contextmanager
    def for_work() -> Iterator[LocalTransaction]:
        # The models of the user's function work on the connection of the thread.
        if connections[alias].in_atomic_block:
            msg = "send_in_transaction commits a transaction of its own: call it outside of atomic(), or use the block"
            raise ConfigurationError(msg, field="database")
        yield DjangoTransaction(alias)

    return LocalDatabase(opened, for_work=for_work, known_by=alias)


@contextlib.contextmanager
def _fresh(connect: Callable[[], Any]) -> Iterator[LocalTransaction]:
    connection = connect()
    driver = driver_of(connection)
    if driver is None:
        msg = (
            f"database returned {type(connection).__name__}: it is a function that opens a new connection of PyMySQL, "
            "mysqlclient, psycopg, psycopg2 or sqlite3 at each call, and returns it"
        )
        raise ConfigurationError(msg, field="database")
    with contextlib.closing(connection):
        yield DbapiTransaction(connection, driver)
