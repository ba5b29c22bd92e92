"""What producers ask of a fence or an outbox: it joins local transactions, and so opens the blocks itself."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from client_core.errors import ConfigurationError, LocalTransactionEnded
from producer_sdk.listener import AsyncTransactionListener, TransactionListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.connection import BackgroundRunner, Connection
    from client_core.message import Message
    from client_core.results import TransactionSendResult
    from client_core.states import TransactionState
    from producer_sdk.async_transaction import AsyncTransaction
    from producer_sdk.transaction import Transaction

__all__ = [
    "AskBroker",
    "AsyncFencingListener",
    "AsyncMessageStore",
    "FencingListener",
    "MessageStore",
    "ended_before_send",
    "ended_inside",
    "lost_messages",
    "refuse_half_a_fence",
    "refuse_no_work",
]

AskBroker: TypeAlias = "Callable[[str], Awaitable[TransactionState | None]]"
"""Asks the broker where a transaction stands; None: it knows nothing of it."""


class FencingListener(TransactionListener):
    """Opens the blocks of a TransactionProducer on local transactions."""

    @abstractmethod
    def block(self, core: AsyncTransaction, runner: BackgroundRunner, given: Any) -> Transaction:
        """The block of a transaction on what the user handed in.

        Raises:
            ConfigurationError: It is no local transaction.
        """

    @abstractmethod
    def attach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """Takes how to ask the broker where a transaction stands."""

    @abstractmethod
    def detach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """The producer closes: ends what the fence does in the background."""


class AsyncFencingListener(AsyncTransactionListener):
    """Opens the blocks of an AsyncTransactionProducer on local transactions."""

    @abstractmethod
    def block(self, core: AsyncTransaction, given: Any) -> AsyncTransaction:
        """The block of a transaction on what the user handed in.

        Raises:
            ConfigurationError: It is no local transaction.
        """

    @abstractmethod
    def attach(self, ask: AskBroker) -> None:
        """Takes how to ask the broker where a transaction stands."""

    @abstractmethod
    async def detach(self, ask: AskBroker) -> None:
        """The producer closes: ends what the fence does in the background."""


class MessageStore(ABC):
    """Takes the messages of a TransactionProducer's blocks into the local transaction itself: an outbox."""

    @abstractmethod
    def open_block(self, given: Any) -> Transaction:
        """The block of a transaction on what the user handed in.

        Raises:
            ConfigurationError: It is no local transaction.
        """

    @abstractmethod
    def send_in_transaction(self, messages: tuple[Message, ...], work: Any) -> TransactionSendResult:
        """Runs a function as the local transaction that has the messages.

        Raises:
            ConfigurationError: ``work`` is no function.
        """

    @abstractmethod
    def attach(self, connection: Connection) -> None:
        """A producer begins: messages may be sent by this connection."""

    @abstractmethod
    def detach(self) -> None:
        """The producer closes: ends what was begun for it."""


class AsyncMessageStore(ABC):
    """The same for an AsyncTransactionProducer."""

    @abstractmethod
    def open_block(self, core: AsyncTransaction, given: Any) -> AsyncTransaction:
        """The block of a transaction on what the user handed in.

        Raises:
            ConfigurationError: It is no local transaction.
        """

    @abstractmethod
    async def send_in_transaction(self, messages: tuple[Message, ...], work: Any) -> TransactionSendResult:
        """Runs a coroutine function as the local transaction that has the messages.

        Raises:
            ConfigurationError: ``work`` is no function.
        """

    @abstractmethod
    async def attach(self, connection: Connection) -> None:
        """A producer begins: messages may be sent by this connection."""

    @abstractmethod
    async def detach(self) -> None:
        """The producer closes: ends what was begun for it."""


def ended_inside(transaction_id: str) -> LocalTransactionEnded:
    """The error of a block that ended its local transaction by itself."""
    msg = (
        f"the local transaction of {transaction_id} was committed or rolled back inside of its block; leave both to "
        "the end of the block, or use tx.rollback(). What it had changed until then is as its own end made it, and the "
        "messages go with that; what followed was rolled back"
    )
    return LocalTransactionEnded(msg, transaction_id=transaction_id)


def ended_before_send(transaction_id: str) -> LocalTransactionEnded:
    """The error of a message that comes after its block's local transaction was ended."""
    msg = (
        f"the message was not sent: the local transaction that the block of {transaction_id} joined was ended inside "
        "of it, by a commit, a rollback, a statement that commits by itself, or the server, and a message that is sent "
        "now would not belong to it. Leave the end to the block; what follows a commit goes into another block"
    )
    return LocalTransactionEnded(msg, transaction_id=transaction_id)


def lost_messages(transaction_id: str) -> LocalTransactionEnded:
    """The error of a block whose own code rolled a savepoint back after it sent a message in it."""
    msg = (
        f"a savepoint of the local transaction of {transaction_id} (begin_nested(), an inner atomic()) was rolled back "
        "after a message was sent inside of it, which a fence cannot take back; all of it was rolled back, messages "
        "too: send after the savepoint, or use an Outbox, whose messages are part of the savepoint"
    )
    return LocalTransactionEnded(msg, transaction_id=transaction_id)


def refuse_no_work(keeper: object, work: object) -> None:
    """Refuses ``send_in_transaction(messages, arg=work)`` without something to run, before anything is sent.

    Args:
        keeper: The fence or the outbox; other listeners take any ``arg``.
        work: The ``arg``.

    Raises:
        ConfigurationError: It is no function, or a coroutine function where none is awaited.
    """
    has_outbox = isinstance(keeper, MessageStore | AsyncMessageStore)
    if not has_outbox and not isinstance(keeper, FencingListener | AsyncFencingListener):
        return
    is_async = isinstance(keeper, AsyncFencingListener | AsyncMessageStore)
    if callable(work) and (is_async or not inspect.iscoroutinefunction(work)):
        return
    kind = "coroutine function" if is_async else "function (no coroutine function)"
    msg = (
        f"with {'an outbox' if has_outbox else 'a fence'}, arg is a {kind} that is called with a connection and does "
        "the local change; or use the block producer.transaction(session)"
    )
    raise ConfigurationError(msg, field="arg")


def refuse_half_a_fence(listener: object, database: object) -> None:
    """Refuses a block that names a database without a fence or an outbox, or none with one.

    Raises:
        ConfigurationError: Says what is missing.
    """
    fenced = isinstance(listener, FencingListener | AsyncFencingListener | MessageStore | AsyncMessageStore)
    if not fenced and database is not None:
        msg = (
            "transaction(session) needs a fence or an outbox: give the producer TransactionFence(engine) or "
            "Outbox(engine)"
        )
        raise ConfigurationError(msg, field="database")
    if fenced and database is None:
        msg = (
            "with a fence or an outbox, a block joins a local transaction: transaction(session), with the session or "
            "connection that the change is made in"
        )
        raise ConfigurationError(msg, field="database")
