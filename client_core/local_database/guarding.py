"""How a block on a plain connection finds out that its transaction was ended: what each database has for it.

* MySQL and MariaDB: the statements are seen (listening.py), as those of SQLAlchemy and Django are.
* PostgreSQL: a setting of the transaction, which ends with it, and with a savepoint that is rolled back. It counts the
  messages, so that one whose savepoint was rolled back is noticed.
* SQLite: a savepoint, which ends with the transaction. To release it would release the user's own savepoints, so before
  the end of the block it is looked whether the block's row is still of this transaction: there, and not for others.
  A row of a temporary table for each message tells whether its savepoint was rolled back.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

from client_core.local_database.dialects import Failure
from client_core.local_database.drivers import in_transaction
from client_core.local_database.listening import DriverListener
from client_core.local_database.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.local_database.dialects import Dialect

__all__ = ["Guard", "guard_of"]


class Guard(Protocol):
    """Looks after the transaction of one block."""

    def noting(self) -> str:
        """What an INSERT of one row has at its end that comes right before ``start``."""
        ...

    def start(self) -> None:
        """Begins, in the transaction."""
        ...

    def stop(self) -> None:
        """The transaction is to be ended by the block."""
        ...

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        """Whether it was ended; asked before each message that is sent outside of it."""
        ...

    def sent(self) -> None:
        """A message is sent outside of it."""
        ...

    def unsent(self) -> None:
        """The last one was refused: nobody has it."""
        ...

    def is_unbroken(self) -> bool:
        """Whether it was not ended, as far as is known without asking."""
        ...

    def is_whole(self) -> bool | None:
        """Whether what is open is the transaction, all of it; asked at its end. None: that cannot be told.

        Raises:
            Exception: The transaction cannot go on, so that it is rolled back.
        """
        ...

    def has_lost_messages(self) -> bool:
        """Whether a savepoint was rolled back after a message was sent in it; asked at the end."""
        ...


def guard_of(connection: Any, dialect: Dialect, fetch: Callable[..., list[tuple[Any, ...]]]) -> Guard:
    """What looks after a transaction of a connection.

    Args:
        connection: A connection of a driver.
        dialect: Its database.
        fetch: Runs a statement and returns its rows.
    """
    if dialect.name == "mysql":
        return _ByStatements(connection, dialect, fetch)
    return _BySetting(fetch) if dialect.name == "postgresql" else _BySavepoint(connection, dialect, fetch)


class _ByStatements:
    """Statements are seen."""

    def __init__(self, connection: Any, dialect: Dialect, fetch: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._listener = DriverListener(connection)
        self._watch = Watch(dialect, self._listener.run, lambda: connection)
        self._fetch = fetch

    def noting(self) -> str:
        return ""

    def start(self) -> None:
        self._listener.start(self._watch)

    def stop(self) -> None:
        self._listener.stop()

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        return self._watch.has_ended_by_now()

    def sent(self) -> None:
        self._watch.sent()

    def unsent(self) -> None:
        self._watch.unsent()

    def is_unbroken(self) -> bool:
        return not self._watch.has_ended()

    def is_whole(self) -> bool | None:
        return self._watch.is_whole(self._fetch)

    def has_lost_messages(self) -> bool:
        return self._watch.has_lost_messages


class _BySetting:
    """A setting of the transaction has the number of messages."""

    _NAME = "halfmq.block"

    def __init__(self, fetch: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._fetch = fetch
        self._block = uuid.uuid4().hex
        self._number = 0
        self._before: list[str] = []
        self._values = [self._value()]
        """Those that it may have: more than one after messages that were refused."""
        self._has_lost = False
        self._is_noted = False

    def noting(self) -> str:
        self._is_noted = True
        return f" RETURNING set_config('{self._NAME}', '{self._value()}', true)"

    def start(self) -> None:
        if self._is_noted:
            return
        self._fetch("SELECT set_config(:name, :value, true)", name=self._NAME, value=self._value())

    def stop(self) -> None:
        return

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        self._number += 1
        changed = self._fetch(
            "SELECT set_config(:name, :value, true)"
            " WHERE current_setting(:name, true) = ANY(string_to_array(:values, ','))",
            name=self._NAME,
            value=self._value(),
            values=",".join(self._values),
        )
        if changed:
            self._values = [*self._values, self._value()]
            return False
        ((found,),) = self._fetch("SELECT current_setting(:name, true)", name=self._NAME)
        # Where a savepoint was rolled back, the end of the block says so.
        return not str(found).startswith(self._block)

    def sent(self) -> None:
        self._before, self._values = self._values, [self._value()]

    def unsent(self) -> None:
        self._values = [*self._before, *self._values]

    def is_unbroken(self) -> bool:
        return True

    def is_whole(self) -> bool:
        ((found,),) = self._fetch("SELECT current_setting(:name, true)", name=self._NAME)
        self._has_lost = str(found) not in self._values
        return str(found).startswith(self._block)

    def has_lost_messages(self) -> bool:
        return self._has_lost

    def _value(self) -> str:
        return f"{self._block} {self._number}"


class _BySavepoint:
    """A savepoint ends with the transaction; rows of a temporary table go with a savepoint that is rolled back."""

    _SENT = "temp.halfmq_sent"

    def __init__(self, connection: Any, dialect: Dialect, fetch: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._connection = connection
        self._dialect = dialect
        self._fetch = fetch
        self._name = f"halfmq_{uuid.uuid4().hex}"
        self._number = 0
        self._before: set[int] = set()
        self._numbers = {0}
        """Those that the last row may have: more than one after messages that were refused."""
        self._is_blind = False
        self._has_lost = False

    def noting(self) -> str:
        return ""

    def start(self) -> None:
        if not in_transaction(self._connection):
            # The driver begins with the first change, and a savepoint outside of a transaction would be one.
            self._fetch("BEGIN")
        self._fetch(f"SAVEPOINT {self._name}")

    def stop(self) -> None:
        return

    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        if not in_transaction(self._connection) or is_gone():
            return True
        self._number += 1
        try:
            self._fetch(f"CREATE TEMP TABLE IF NOT EXISTS {self._SENT.partition('.')[2]} (block TEXT, number INTEGER)")
            statement = f"INSERT INTO {self._SENT} VALUES (:block, :number)"  # noqa: S608
            self._fetch(statement, block=self._name, number=self._number)
        except Exception:
            # A connection that its own thread alone may use, for example.
            self._is_blind = True
        self._numbers = {*self._numbers, self._number}
        return False

    def sent(self) -> None:
        self._before, self._numbers = self._numbers, {self._number}

    def unsent(self) -> None:
        self._numbers |= self._before

    def is_unbroken(self) -> bool:
        return True

    def is_whole(self) -> bool:
        try:
            self._fetch(f"RELEASE SAVEPOINT {self._name}")
        except Exception as error:
            if self._dialect.failure_of(error) is Failure.NO_SAVEPOINT:
                return False
            raise
        if self._number and not self._is_blind:
            self._has_lost = self._last() not in self._numbers
        return True

    def _last(self) -> int:
        """The number of the last message that the transaction has."""
        try:
            ((found,),) = self._fetch(f"SELECT MAX(number) FROM {self._SENT} WHERE block = :block", block=self._name)  # noqa: S608
            self._fetch(f"DELETE FROM {self._SENT} WHERE block = :block", block=self._name)  # noqa: S608
        except Exception as error:
            if self._dialect.failure_of(error) is not Failure.NO_TABLE:
                raise
            return 0  # It was made inside of a savepoint that was rolled back.
        return int(found or 0)

    def has_lost_messages(self) -> bool:
        return self._has_lost
