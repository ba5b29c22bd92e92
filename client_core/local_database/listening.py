"""Has the statements of a connection of PyMySQL or mysqlclient seen: their Python code can be listened to.

Every statement of their cursors is one call of the connection's ``query``; what ends a transaction has calls of its
own. These are replaced on the one connection, for as long as a block has it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from client_core.local_database.drivers import driver_of, in_transaction, refuse_unfinished
from client_core.local_database.watching import would_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from client_core.local_database.watching import Watch

__all__ = ["DriverListener"]

_ENDS = ("commit", "rollback", "begin", "change_user")
_LISTENED_TO = {"pymysql", "MySQLdb"}
_SEVERAL = 1 << 16
"""MySQL's CLIENT_MULTI_STATEMENTS."""


class DriverListener:
    """Tells a watch what runs on one connection, until it is stopped."""

    def __init__(self, connection: Any) -> None:
        """Takes the connection; it is as it was."""
        self._connection = connection
        names = ("query", "autocommit", "ping", *_ENDS)
        self._before = {name: getattr(connection, name) for name in names if hasattr(connection, name)}
        self._was_set = {name for name in self._before if name in vars(connection)}
        self._watch: Watch | None = None
        self._is_seen = False

    @staticmethod
    def can_listen(connection: Any) -> bool:
        """Whether this is a connection of PyMySQL or mysqlclient."""
        return driver_of(connection) in _LISTENED_TO

    @staticmethod
    def leave(connection: Any) -> None:
        """Whoever listens to a connection stops: it is to have another user."""
        listener = getattr(getattr(connection, "__dict__", {}).get("query"), "__self__", None)
        if isinstance(listener, DriverListener):
            listener.stop()

    @property
    def is_listening(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._watch is not None

    def start(self, watch: Watch) -> None:
        """Begins to tell."""
        self._watch = watch
        if hasattr(self._connection, "server_status"):
            # PyMySQL says whether it asked for that; connections of mysqlclient do so by themselves.
            watch.takes_several = bool(self._connection.client_flag & _SEVERAL)
        self._connection.query = self._query
        self._connection.autocommit = self._autocommit
        if in_transaction(self._connection) is None:
            # PyMySQL connects again too, but tells that there is no transaction then.
            self._connection.ping = self._ping
        for name in _ENDS:
            if name in self._before:
                setattr(self._connection, name, self._ending(name))

    def stop(self) -> None:
        """The connection is as it was."""
        if self._watch is None:
            return
        self._watch = None
        for name, before in self._before.items():
            if name in self._was_set:
                setattr(self._connection, name, before)
            else:
                # Connections of mysqlclient refuse delattr().
                vars(self._connection).pop(name, None)

    @contextlib.contextmanager
    def seen(self) -> Iterator[None]:
        """Around statements that the watch is told of otherwise."""
        before, self._is_seen = self._is_seen, True
        try:
            yield
        finally:
            self._is_seen = before

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Runs a statement that nobody is told of; its rows.

        Raises:
            ConfigurationError: Rows are being read one by one, which it would end.
        """
        refuse_unfinished(self._connection)
        with self.seen(), contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)
            if cursor.description is None:
                return []
            return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]

    def _query(self, statement: Any, *rest: Any, **options: Any) -> Any:
        watch, query = self._watch, self._before["query"]
        if watch is None or self._is_seen:
            return query(statement, *rest, **options)
        # Its words are ASCII, whatever its values are.
        watch.before(statement if isinstance(statement, str) else bytes(statement).decode("latin-1"))
        try:
            result = query(statement, *rest, **options)
        except Exception as error:
            watch.failed(error)
            raise
        watch.after()
        return result

    def _autocommit(self, value: Any) -> Any:
        try:
            return self._before["autocommit"](value)
        finally:
            if value:
                self._ended()

    def _ping(self, *args: Any) -> Any:
        if any(args) and self._watch is not None:
            what = "ping(True), which has the connection open another session where it is lost,"
            raise would_end(what)
        return self._before["ping"](*args)

    def _ending(self, name: str) -> Callable[..., Any]:
        def end(*args: Any, **options: Any) -> Any:
            try:
                return self._before[name](*args, **options)
            finally:
                # Whatever became of it.
                self._ended()

        return end

    def _ended(self) -> None:
        if self._watch is not None and not self._is_seen:
            self._watch.ended()
