"""A local transaction as halfmq joins it: the user's own, or one that halfmq opens beside it."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.local_database.dialects import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from client_core.local_database.dialects import Dialect

__all__ = ["AsyncLocalTransaction", "Ending", "LocalTransaction"]

ResultT = TypeVar("ResultT")


class Ending(Enum):
    """How a commit of the block's end left the local transaction."""

    COMMITTED = auto()
    """The database said so."""
    ROLLED_BACK = auto()
    """A framework had marked it for rollback, and it was rolled back."""
    LATER = auto()
    """It is part of an outer transaction, whose end decides."""


class LocalTransaction(ABC):
    """A local transaction; statements have values as ``:name``."""

    dialect: Dialect
    given: Any
    """What the user handed in, or the connection that was opened for them."""
    _mark = ""

    @abstractmethod
    def begin(self) -> None:
        """Begins a transaction, or joins the one that is open.

        Raises:
            ConfigurationError: It cannot be joined; says why.
        """

    @abstractmethod
    def join(self) -> None:
        """Takes the transaction that the user has open, or that their next statement opens; a savepoint too.

        Begins nothing that the user would not end.

        Raises:
            ConfigurationError: There is none: the connection commits each statement by itself.
        """

    def on_commit(self, call: Callable[[], None]) -> bool:
        """Has something called after the user's transaction commits; False: this library does not tell.

        It may be called at other times as well, but not where it is asked for after ``Ending.LATER``.
        """
        return False

    @abstractmethod
    def execute(self, sql: str, **values: Any) -> int:
        """Runs a statement; how many rows it changed."""

    @abstractmethod
    def fetch(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        """Runs a query."""

    def binary(self, name: str, value: bytes) -> tuple[str, Any]:
        """How bytes are bound under a name: the expression, and the value."""
        return f":{name}", value

    @abstractmethod
    def in_transaction(self) -> bool | None:
        """Whether the driver has a transaction open, asked after a statement; None: it cannot tell."""

    @abstractmethod
    def is_same(self) -> bool | None:
        """Whether the transaction that ``begin`` joined was not ended since; None: this library cannot tell."""

    def is_unbroken(self) -> bool:
        """Whether the transaction that ``begin`` joined is still open, as far as library and driver can tell."""
        return self.is_same() is not False and self.in_transaction() is not False

    def is_doomed(self) -> bool:
        """Whether commit() will roll back, and no statement runs any more."""
        return False

    def mark(self) -> None:
        """Marks the transaction on the server, where the library cannot tell one from the next."""
        return

    def is_marked(self) -> bool:
        """Whether the open transaction is the one that was marked; asked once.

        Raises:
            Exception: The transaction cannot go on.
        """
        return True

    def set_mark(self) -> None:
        """Marks the transaction by a savepoint, which ends with it; also with one that the server ends by itself."""
        if self.dialect.name == "sqlite" and self.in_transaction() is False:
            # Its drivers begin with the first change, and a savepoint outside of a transaction would be one.
            self.execute("BEGIN")
        self._mark = f"halfmq_{uuid.uuid4().hex}"
        self.execute(f"SAVEPOINT {self._mark}")

    def has_mark(self) -> bool:
        """Whether the open transaction is the one that was marked; asked once.

        Raises:
            Exception: The transaction cannot go on.
        """
        try:
            self.execute(f"RELEASE SAVEPOINT {self._mark}")
        except Exception as error:
            if self.dialect.failure_of(error) is Failure.NO_SAVEPOINT:
                return False
            raise
        return True

    @abstractmethod
    def commit(self) -> Ending:
        """Writes what the library still holds back, and commits."""

    @abstractmethod
    def rollback(self) -> None:
        """Rolls back whatever is open."""

    @abstractmethod
    def known_by(self) -> Hashable | None:
        """What stands for the database of this connection, to remember that it was verified; None: only itself."""

    def close(self) -> None:
        """Gives back a connection that ``begin`` opened; what the user handed in stays as it is."""
        return


class AsyncLocalTransaction:
    """The same on asyncio: runs calls on the synchronous form where they may wait."""

    def __init__(self, local: LocalTransaction, run: Callable[..., Any], given: Any = None) -> None:
        """Takes the synchronous form, SQLAlchemy's way to run a function on it, and what the user handed in."""
        self.local = local
        self.given = given
        self._run = run

    async def run(self, call: Callable[[LocalTransaction], ResultT]) -> ResultT:
        """Runs a call that uses the transaction."""
        result: ResultT = await self._run(lambda _: call(self.local))
        return result

    async def close(self) -> None:
        """Gives back a connection that was opened; what the user handed in stays as it is."""
        return
