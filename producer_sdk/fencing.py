"""What producers ask of a fence: a listener that joins local transactions, and so opens the blocks itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

from client_core.errors import ConfigurationError
from producer_sdk.listener import AsyncTransactionListener, TransactionListener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.connection import BackgroundRunner
    from client_core.states import TransactionState
    from producer_sdk.async_transaction import AsyncTransaction
    from producer_sdk.transaction import Transaction

__all__ = ["AskBroker", "AsyncFencingListener", "FencingListener", "refuse_half_a_fence"]

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


def refuse_half_a_fence(listener: object, database: object) -> None:
    """Refuses a block that names a database without a fence, or none with one.

    Raises:
        ConfigurationError: Says what is missing.
    """
    fenced = isinstance(listener, FencingListener | AsyncFencingListener)
    if not fenced and database is not None:
        msg = "transaction(session) needs a fence: give the producer listener=TransactionFence(engine)"
        raise ConfigurationError(msg, field="database")
    if fenced and database is None:
        msg = (
            "with a fence, a block joins a local transaction: transaction(session), with the session or connection "
            "that the change is made in"
        )
        raise ConfigurationError(msg, field="database")
