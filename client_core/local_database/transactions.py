"""A local transaction as halfmq joins it: the user's own, or one that halfmq opens beside it."""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeVar

from client_core.errors import ConfigurationError
from client_core.uninterrupted import to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator

    from client_core.local_database.dialects import Dialect

__all__ = ["AsyncLocalTransaction", "Ending", "LocalTransaction"]

ResultT = TypeVar("ResultT")

END_WITHIN = 8.0
"""Seconds for the end of a transaction on asyncio, before its connection is ended."""


class Ending(Enum):
    """How a commit of the block's end left the local transaction."""

    COMMITTED = auto()
    """The database said so."""
    ROLLED_BACK = auto()
    """A framework had marked it for rollback, and it was rolled back."""
    LATER = auto()
    """It is part of an outer transaction, whose end decides."""


_in_blocks: weakref.WeakValueDictionary[int, LocalTransaction] = weakref.WeakValueDictionary()
"""What has begun or joined the transaction of a connection, and is to end it, by the identity of the connection."""
_ONE_BLOCK = (
    "another block of halfmq has this connection's transaction, and will end it: have one block, and inside of it use "
    "what ends nothing, outbox.put(session, message) to send, applied.mark(session, message) to apply"
)


class LocalTransaction(ABC):
    """A local transaction; statements have values as ``:name``."""

    dialect: Dialect
    given: Any
    """What the user handed in, or the connection that was opened for them."""
    _taken: frozenset[int] = frozenset()
    is_between = False
    """It begins, until it is watched, or ends, and may wait meanwhile."""

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

    def take(self, connection: object) -> None:
        """Notes that this is to end the transaction of a connection, or of a session.

        Raises:
            ConfigurationError: Another one is.
        """
        other = _in_blocks.get(id(connection))
        if other is not None and other is not self:
            if other.is_going_on():
                raise ConfigurationError(_ONE_BLOCK, field="database")
            other.give_up()
        _in_blocks[id(connection)] = self
        self._taken |= {id(connection)}

    def let_go(self) -> None:
        """The transaction is to end."""
        taken, self._taken, self.is_between = self._taken, frozenset(), False
        for each in taken:
            if _in_blocks.get(each) is self:
                del _in_blocks[each]

    @contextlib.contextmanager
    def beginning(self, given: object) -> Iterator[None]:
        """Around what begins; from here on, until it is watched, another one on the same session is refused.

        Raises:
            ConfigurationError: Another one is to end its transaction.
        """
        self.take(given)
        self.is_between = True
        try:
            yield
        except BaseException:
            self.let_go()
            raise

    def give_up(self) -> None:  # noqa: B027 - not all have something to do
        """Another block has the connection: this one, whose transaction was ended by hand, has not come to its end."""

    def is_going_on(self) -> bool:
        """Whether the transaction was not ended; one whose connection was given back is over."""
        if self.is_between:
            return True
        try:
            return self.is_unbroken()
        except Exception:
            return False

    @abstractmethod
    def is_same(self) -> bool | None:
        """Whether the transaction that ``begin`` joined was not ended since; None: this library cannot tell."""

    def is_unbroken(self) -> bool:
        """Whether the transaction that ``begin`` joined is still open, as far as can be told without the server."""
        return self.is_same() is not False and self.in_transaction() is not False

    def is_doomed(self) -> bool:
        """Whether commit() will roll back, and no statement runs any more."""
        return False

    def noting(self) -> str:
        """What the INSERT of one row has at its end where it is the last statement before ``watch``, and saves one."""
        return ""

    @abstractmethod
    def watch(self) -> None:
        """Begins to look whether the transaction that ``begin`` joined is ended, until ``commit`` or ``rollback``."""

    @abstractmethod
    def is_whole(self) -> bool | None:
        """Whether what is about to be committed is the transaction as it was watched; asked once.

        Returns:
            None: that cannot be told, and is to be read from what the transaction has written.

        Raises:
            Exception: The transaction cannot go on, so that it is rolled back.
        """

    @abstractmethod
    def has_ended(self, is_gone: Callable[[], bool]) -> bool:
        """Whether the transaction that ``begin`` joined was ended; asked before a message is sent outside of it.

        Args:
            is_gone: Finds out whether what the block wrote first is committed, or rolled back; for libraries that
                tell nothing by themselves.
        """

    def sent(self) -> None:
        """A message is sent outside of the transaction."""
        return

    def unsent(self) -> None:
        """The last one was refused: nobody has it."""
        return

    def has_lost_messages(self) -> bool:
        """Whether a savepoint was rolled back after a message was sent in it, as far as savepoints are seen."""
        return False

    @abstractmethod
    def commit(self) -> Ending:
        """Writes what the library still holds back, and commits."""

    @abstractmethod
    def rollback(self) -> None:
        """Rolls back whatever is open."""

    @abstractmethod
    def known_by(self) -> Hashable | None:
        """What stands for the database of this connection, to remember that it was verified; None: only itself."""

    def place(self) -> Hashable | None:
        """What stands for the server and the database of this connection; None: nothing that is known without it."""
        return self.known_by()

    def cut(self) -> None:  # noqa: B027 - of those on asyncio
        """Ends the connection at once, whatever waits for it: the server rolls back."""

    def discard(self) -> None:  # noqa: B027 - of those with a pool
        """Has nobody use the connection again; the transaction is still to be rolled back."""

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

    async def end(self, call: Callable[[LocalTransaction], ResultT]) -> ResultT:
        """Runs a call that ends the transaction, to its end however often the task is cancelled.

        A connection that two tasks have used at a time may have lost its place in what the server sends, and then no
        answer comes. So it is ended after some seconds.

        Raises:
            TimeoutError: It was.
        """
        return await to_its_end(self.run(call), END_WITHIN, self._cut)

    async def write(self, call: Callable[[LocalTransaction], ResultT]) -> ResultT:
        """Runs a call that is not to be left half way; some seconds after a cancellation its connection is ended."""
        return await to_its_end(self.run(call), END_WITHIN, self._cut, from_cancellation=True)

    async def wait_for_sends(self, work: Awaitable[None], *, is_rolling_back: bool) -> None:
        """Waits for what is being written, to its end; what has no answer for some seconds has the connection ended.

        Before a commit these seconds count from a cancellation: a statement may wait for a lock.

        Raises:
            CancelledError: The task was cancelled; what was being written has ended all the same.
            TimeoutError: It was ended.
        """
        await to_its_end(work, END_WITHIN, self._cut, from_cancellation=not is_rolling_back)

    async def leave(self) -> None:
        """As ``close``, to its end, in the same way; without an error."""
        with contextlib.suppress(TimeoutError):
            await to_its_end(self.close(), END_WITHIN, self._cut)

    def _cut(self) -> None:
        self.local.cut()

    async def close(self) -> None:
        """Gives back a connection that was opened; what the user handed in stays as it is."""
        return
