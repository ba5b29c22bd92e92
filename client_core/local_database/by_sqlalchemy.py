"""Local transactions of SQLAlchemy: Engine, Connection, Session, and their asyncio forms."""

from __future__ import annotations

import contextlib
import functools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session

from client_core.errors import ConfigurationError
from client_core.local_database.dialects import dialect_of
from client_core.local_database.drivers import (
    autocommits,
    end_of,
    in_transaction,
    refuse_autocommit,
    refuse_driver,
    refuse_unfinished,
    stay_in_session,
    with_places,
)
from client_core.local_database.engine_events import EngineEvents, run_beside
from client_core.local_database.listening import DriverListener
from client_core.local_database.rolled_back import follow
from client_core.local_database.transactions import Ending
from client_core.local_database.watching import Watch, WatchedTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["SqlalchemyTransaction", "sync_form"]


_told: weakref.WeakKeyDictionary[Callable[[], None], weakref.WeakSet[Session]] = weakref.WeakKeyDictionary()
"""The sessions whose commits somebody is told of."""

_SEVERAL = "the session has several databases (binds=, get_bind()), which do not commit together; use one for the block"
_NESTED = (
    "begin the block outside of begin_nested(): the end of the block commits the whole transaction, not a savepoint"
)


class SqlalchemyTransaction(WatchedTransaction):
    """The transaction of a Session or of a Connection; of an Engine, on a connection of its own."""

    def __init__(self, given: sa.Engine | sa.Connection | Session, *, is_own: bool = False) -> None:
        """Takes what the user works with; nothing is begun.

        Args:
            given: It.
            is_own: Nobody else has the connection; its transactions are begun by a statement where it would commit
                each statement by itself.
        """
        self.given = given
        self._is_own = is_own
        self._was_alone = False
        self._engine = given if isinstance(given, sa.Engine) else None
        self._connection = given if isinstance(given, sa.Connection) else None
        self._session = given if isinstance(given, Session) else None
        self._root: Any = None
        self._watched: sa.Connection | None = None
        self._driver_connection: Any = None
        self._listener: DriverListener | None = None
        self.dialect = dialect_of(given.dialect.name if isinstance(given, sa.Engine | sa.Connection) else "sqlite")

    def begin(self) -> None:
        """Joins the open transaction, or begins one.

        Raises:
            ConfigurationError: It is a savepoint, or its database is of another kind.
        """
        # An Engine has any number at a time, each on a connection of its own.
        with self.beginning(self.given) if self._engine is None else contextlib.nullcontext():
            self._begin()

    def _begin(self) -> None:
        if self._engine is not None and self._connection is None:
            self._connection = self.given = self._engine.connect()
        if self._session is not None:
            if self._session.in_nested_transaction():
                raise ConfigurationError(_NESTED, field="database")
            _refuse_outer_transactions(self._session)
            is_new = not self._session.in_transaction()
            if is_new:
                self._session.begin()
            connection = self._session.connection()
            self._root = self._session.get_transaction()
        else:
            assert self._connection is not None  # noqa: S101 - one of the three was given
            connection = self._connection
            if connection.in_nested_transaction():
                raise ConfigurationError(_NESTED, field="database")
            is_new = not connection.in_transaction()
            if is_new:
                connection.begin()
            self._root = connection.get_transaction()
        self.dialect = dialect_of(connection.dialect.name)
        try:
            refuse_driver(connection.dialect)
            if self._is_own and self.dialect.name == "mysql":
                _begin_where_it_autocommits(connection)
            _refuse_autocommit(connection)
            pooled = connection.connection
            self._driver_connection = pooled.driver_connection
            refuse_unfinished(self._driver_connection)
            stay_in_session(self._driver_connection)
            self.take(pooled.dbapi_connection)
        except ConfigurationError:
            if is_new:
                self.rollback()
            raise

    def join(self) -> None:
        """Takes what is open, a savepoint too, or what SQLAlchemy opens with the next statement.

        Raises:
            ConfigurationError: It is an Engine, has several databases, or commits each statement by itself.
            LocalTransactionEnded: The server has rolled it back.
        """
        if self._engine is not None:
            msg = "an Engine has no transaction to be part of: hand in the Session or the Connection of the change"
            raise ConfigurationError(msg, field="database")
        if self._session is not None:
            _refuse_several_databases(self._session)
            connection = self._session.connection()
        else:
            connection = self._on()
        self.dialect = dialect_of(connection.dialect.name)
        refuse_driver(connection.dialect)
        _refuse_autocommit(connection)
        stay_in_session(connection.connection.driver_connection)
        if self.dialect.name == "mysql":
            follow(connection)

    def on_commit(self, call: Callable[[], None]) -> bool:
        """By an event of the Session; a Connection has none that comes after its commit."""
        session = self._session
        if session is None:
            return False
        if session not in _told.get(call, ()):
            # It stays with the session: of what is rolled back, the next commit tells in vain.
            sa.event.listen(session, "after_commit", lambda _: call())
            _told.setdefault(call, weakref.WeakSet()).add(session)
        return True

    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement."""
        return int(self._run(sql, values).rowcount)

    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query, or a statement that may have rows."""
        result = self._run(sql, values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def binary(self, name: str, value: bytes) -> tuple[str, Any]:
        """As they are, or in hexadecimal: aiomysql cannot write bytes with PyMySQL 1.2."""
        connection = self._session.connection() if self._session is not None else self._on()
        if connection.dialect.driver == "aiomysql":
            return f"UNHEX(:{name})", value.hex()
        return super().binary(name, value)

    def in_transaction(self) -> bool | None:
        """By the state that the driver keeps."""
        connection = self._session.connection() if self._session is not None else self._on()
        return in_transaction(connection.connection.driver_connection)

    def is_unbroken(self) -> bool:
        """By the identity of SQLAlchemy's transaction, and by what was seen of its statements."""
        if self._watch is None:
            return super().is_unbroken()
        return self.is_same() and not self._watch.has_ended()

    def watch(self) -> None:
        """By SQLAlchemy's events."""
        connection = self._session.connection() if self._session is not None else self._on()
        driver = self._driver_connection
        if self.dialect.name == "sqlite" and in_transaction(driver) is False:
            # Its drivers begin with the first change, and a savepoint outside of a transaction would be one.
            self._run("BEGIN", {})
        self._was_alone = autocommits(driver)
        _events.listen(connection.engine)
        if DriverListener.can_listen(driver):
            self._listener = DriverListener(driver)
            self._watch = Watch(self.dialect, self._listener.run, lambda: driver)
            self._listener.start(self._watch)
        else:
            self._watch = Watch(
                self.dialect, functools.partial(run_beside, connection), lambda: connection.connection.driver_connection
            )
        _looked_after[connection] = _LookedAfter(self._watch, self._listener)
        self._watched = connection
        self.is_between = False

    def is_whole(self) -> bool | None:
        """By what was seen."""
        if not self.is_same():
            return False
        if self._session is not None:
            self._session.flush()
            _refuse_what_it_joined(self._root)
        return self._watch is None or self._watch.is_whole(lambda sql: self._run(sql, {}))

    def _stop_watching(self) -> None:
        if self._watched is not None:
            _looked_after.pop(self._watched, None)
            self._watched = None
        if self._listener is not None:
            self._listener.stop()

    def _drop_what_commits_now(self) -> None:
        connection = self._watched
        if connection is None or connection.closed or connection.invalidated or self._was_alone:
            return
        if autocommits(connection.connection.driver_connection):
            connection.invalidate()

    def is_same(self) -> bool:
        """By the identity of SQLAlchemy's transaction."""
        root = self._session.get_transaction() if self._session is not None else self._on().get_transaction()
        return root is not None and root is self._root and root.is_active

    def commit(self) -> Ending:
        """Flushes and commits."""
        self.is_between = True  # Until the rollback, where it fails.
        if self._watch is not None:
            self._watch.is_ending = True
        try:
            if self._session is not None:
                self._session.commit()
            else:
                self._on().commit()
        finally:
            self._stop_watching()
        self.let_go()
        return Ending.COMMITTED

    def rollback(self) -> None:
        """Rolls back; a connection that cannot is not used again, nor is one that was changed (SET autocommit)."""
        self.is_between = True
        self._drop_what_commits_now()
        watched = self._watched
        self._stop_watching()
        self._watch = None
        if watched is not None:
            _rolling_back.add(watched)
        try:
            if self._session is not None:
                self._session.rollback()
            else:
                self._on().rollback()
        finally:
            if watched is not None:
                _rolling_back.discard(watched)
            self.let_go()

    def known_by(self) -> Hashable:
        """The engine."""
        return (self._session.connection() if self._session is not None else self._on()).engine

    def cut(self) -> None:
        """By the driver: SQLAlchemy would wait for it."""
        end = end_of(self._driver_connection)
        if end is not None:
            with contextlib.suppress(Exception):
                end()

    def discard(self) -> None:
        """By its pool."""
        connection = self._session.connection() if self._session is not None else self._connection
        if connection is not None and not connection.closed and not connection.invalidated:
            connection.invalidate()

    def close(self) -> None:
        """Gives the connection of an Engine back to its pool."""
        if self._engine is not None and self._connection is not None:
            self._connection.close()

    def _on(self) -> sa.Connection:
        assert self._connection is not None  # noqa: S101 - begin() made it
        return self._connection

    def _run(self, sql: str, values: dict[str, Any]) -> sa.CursorResult[Any]:
        # On the session's connection: execute() of the session would flush what the user has not finished.
        connection = self._session.connection() if self._session is not None else self._on()
        refuse_unfinished(connection.connection.driver_connection)
        if not values:
            # As it stands: one that has its keys inside comes once, and is not worth parsing.
            return connection.exec_driver_sql(sql)
        if self.dialect.name == "mysql":
            # All of its drivers take values by these names, and SQLAlchemy has less to do than for a text of its own.
            return connection.exec_driver_sql(with_places(sql), values)
        return connection.execute(_text(sql), values)


def _refuse_autocommit(connection: sa.Connection) -> None:
    pooled = connection.connection
    driver, adapter = pooled.driver_connection, pooled.dbapi_connection
    refuse_autocommit(driver)
    if adapter is not driver:
        # What adapts drivers of asyncio has it of its own; theirs do not know.
        refuse_autocommit(adapter)


def _begin_where_it_autocommits(connection: sa.Connection) -> None:
    driver = connection.connection.driver_connection
    if autocommits(driver) and not in_transaction(driver):
        connection.exec_driver_sql("BEGIN")


@dataclass(frozen=True, slots=True)
class _LookedAfter:
    """A transaction of a connection, and who tells of its statements; None: SQLAlchemy."""

    watch: Watch
    listener: DriverListener | None

    def is_told(self) -> bool:
        """Whether SQLAlchemy is to tell; also of what comes after the end, when the driver is not listened to."""
        return self.listener is None or not self.listener.is_listening

    def leave(self) -> None:
        """SQLAlchemy ends the transaction: somebody else may get the connection."""
        if self.listener is not None:
            self.listener.stop()


_looked_after: weakref.WeakKeyDictionary[sa.Connection, _LookedAfter] = weakref.WeakKeyDictionary()
_rolling_back: weakref.WeakSet[sa.Connection] = weakref.WeakSet()
"""Connections that a block's end rolls back now."""


def _before(
    connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    looked = _looked_after.get(connection)
    if looked is not None and looked.is_told():
        looked.watch.before(statement)


def _after(
    connection: sa.Connection, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool
) -> None:
    looked = _looked_after.get(connection)
    if looked is not None and looked.listener is None:
        looked.watch.after()


def _before_commit(connection: sa.Connection) -> None:
    looked = _looked_after.get(connection)
    if looked is None:
        return
    try:
        if looked.watch.is_ending:
            looked.watch.before_commit()
        else:
            looked.watch.ended()
    except BaseException:
        looked.leave()
        # SQLAlchemy takes the transaction for over, whatever becomes of its COMMIT.
        connection.connection.rollback()
        raise
    looked.leave()


def _before_rollback(connection: sa.Connection) -> None:
    looked = _looked_after.get(connection)
    if looked is not None:
        looked.watch.ended()
        looked.leave()


def _given_back(driver_connection: Any, record: Any) -> None:
    DriverListener.leave(driver_connection)


def _failed(context: sa.engine.ExceptionContext) -> None:
    if context.connection in _rolling_back:
        # Whatever it is: the pool would give the connection, with an open transaction, to the next one.
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False
    looked = _looked_after.get(context.connection) if context.connection is not None else None
    if looked is not None and looked.listener is None:
        looked.watch.failed(context.original_exception)


_events = EngineEvents(
    before_cursor_execute=_before,
    after_cursor_execute=_after,
    handle_error=_failed,
    commit=_before_commit,
    rollback=_before_rollback,
    checkin=_given_back,
)


@functools.lru_cache(maxsize=256)
def _text(sql: str) -> sa.TextClause:
    """A statement, parsed once: the few that blocks run come again and again."""
    return sa.text(sql)


def _refuse_outer_transactions(session: Session) -> None:
    """Refuses sessions whose commit() leaves changes to a transaction around it, or commits on several databases.

    Raises:
        ConfigurationError: It is one.
    """
    if getattr(session, "twophase", False):
        msg = (
            "the session commits in two phases (twophase=True), which a block does not: give it one without that; "
            "a block needs one database only"
        )
        raise ConfigurationError(msg, field="database")
    bind = session.bind
    outer = isinstance(bind, sa.Connection) and bind.in_transaction() and not session.in_transaction()
    if outer and getattr(session, "join_transaction_mode", "") != "control_fully":
        msg = (
            "the session is part of a transaction of its Connection, which its commit() does not commit: hand in the "
            'Connection, or give the session join_transaction_mode="control_fully"'
        )
        raise ConfigurationError(msg, field="database")
    _refuse_several_databases(session)


def _refuse_what_it_joined(root: Any) -> None:
    """Refuses a session that got connections of several engines by its own get_bind()."""
    joined = getattr(root, "_connections", None) or {}
    if len({id(each[0].engine) for each in joined.values()}) > 1:
        raise ConfigurationError(_SEVERAL, field="database")


def _refuse_several_databases(session: Session) -> None:
    bind = session.bind
    # A public attribute since 2.1.
    binds: dict[Any, Any] = getattr(session, "binds", None) or getattr(session, "_Session__binds", {})
    if len({id(each.engine) for each in (*binds.values(), *([bind] if bind is not None else []))}) > 1:
        raise ConfigurationError(_SEVERAL, field="database")


def sync_form(given: object) -> sa.Engine | sa.Connection | Session | None:
    """What a synchronous object of SQLAlchemy stands for; None: it is none."""
    if isinstance(given, scoped_session):
        return given()  # type: ignore[no-any-return]
    return given if isinstance(given, sa.Engine | sa.Connection | Session) else None
