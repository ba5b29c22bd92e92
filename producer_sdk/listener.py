"""The application's side of a transaction: run it, and answer checks of it."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from client_core.connection import is_own_cancellation, reason_of
from client_core.states import LocalTransactionState
from client_core.threads import LastingThreads

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.message import HalfMessages

__all__ = ["AnyListener", "AsyncTransactionListener", "ListenerCaller", "TransactionListener", "run_execute"]

_log = logging.getLogger("halfmq.producer")

ParamT = ParamSpec("ParamT")
ResultT = TypeVar("ResultT")


class TransactionListener(ABC):
    """Runs local transactions and answers checks of them.

    Methods are called from several threads. Checks go to any producer of the group, so answers must come from the
    database that the local transaction wrote to, not from the memory of this process.
    """

    @abstractmethod
    def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Runs the local transaction; the half messages are already stored.

        Args:
            messages: The half messages, with the ``transaction_id`` to store along with the local change.
            arg: The ``arg`` of ``send_in_transaction``.

        Returns:
            COMMIT or ROLLBACK; UNKNOWN when a later check is to decide. An exception counts as UNKNOWN.
        """

    @abstractmethod
    def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Returns the outcome of a local transaction whose verdict the broker did not get.

        Args:
            messages: The half messages, with ``transaction_id`` and ``check_number``.

        Returns:
            COMMIT, ROLLBACK, or UNKNOWN while it may still be running. An exception counts as UNKNOWN, SystemExit as
            well.
        """


class AsyncTransactionListener(ABC):
    """Runs local transactions and answers checks of them, on the event loop of an AsyncTransactionProducer.

    Checks go to any producer of the group, so answers must come from the database that the local transaction wrote to,
    not from the memory of this process.
    """

    @abstractmethod
    async def execute_local_transaction(self, messages: HalfMessages, arg: Any) -> LocalTransactionState:
        """Runs the local transaction; the half messages are already stored.

        Args:
            messages: The half messages, with the ``transaction_id`` to store along with the local change.
            arg: The ``arg`` of ``send_in_transaction``.

        Returns:
            COMMIT or ROLLBACK; UNKNOWN when a later check is to decide. An exception counts as UNKNOWN.
        """

    @abstractmethod
    async def check_local_transaction(self, messages: HalfMessages) -> LocalTransactionState:
        """Returns the outcome of a local transaction whose verdict the broker did not get.

        Args:
            messages: The half messages, with ``transaction_id`` and ``check_number``.

        Returns:
            COMMIT, ROLLBACK, or UNKNOWN while it may still be running. An exception counts as UNKNOWN, SystemExit as
            well.
        """


AnyListener: TypeAlias = TransactionListener | AsyncTransactionListener
"""A listener of either kind."""


def run_execute(
    listener: TransactionListener, messages: HalfMessages, arg: Any
) -> tuple[LocalTransactionState, Exception | None]:
    """Runs a local transaction in the calling thread.

    Returns:
        The listener's answer, and its exception, if any.
    """
    try:
        return _state(listener.execute_local_transaction(messages, arg), "execute_local_transaction"), None
    except Exception as error:
        return LocalTransactionState.UNKNOWN, _failed_execute(messages, error)


class ListenerCaller:
    """Calls a listener of either kind without blocking the event loop, with limited concurrency."""

    def __init__(self, listener: AnyListener, concurrency: int) -> None:
        """Starts no thread yet.

        Args:
            listener: The listener; a synchronous one is called in threads.
            concurrency: Calls at a time, at most.
        """
        self.listener = listener
        self._slots = asyncio.Semaphore(concurrency)
        self._threads: LastingThreads | None = None
        self._concurrency = concurrency

    async def execute(self, messages: HalfMessages, arg: Any) -> tuple[LocalTransactionState, Exception | None]:
        """Runs a local transaction.

        Returns:
            The listener's answer, and its exception, if any.
        """
        async with self._slots:
            if isinstance(self.listener, TransactionListener):
                return await self._in_thread(run_execute, self.listener, messages, arg)
            try:
                answer = await self.listener.execute_local_transaction(messages, arg)
                return _state(answer, "execute_local_transaction"), None
            except Exception as error:
                return LocalTransactionState.UNKNOWN, _failed_execute(messages, error)

    async def check(self, messages: HalfMessages) -> tuple[LocalTransactionState, str]:
        """Asks the listener how a local transaction ended.

        Returns:
            The listener's answer, and the reason if it is UNKNOWN because of any exception.
        """
        async with self._slots:
            try:
                if isinstance(self.listener, TransactionListener):
                    answer = await self._in_thread(self.listener.check_local_transaction, messages)
                else:
                    answer = await self.listener.check_local_transaction(messages)
                return _state(answer, "check_local_transaction"), ""
            except BaseException as error:
                if is_own_cancellation(error):
                    raise
                # SystemExit as well: a check that ends the process would be repeated, and end the next one.
                _log.exception(
                    "check %d of transaction %s failed in the listener; answering UNKNOWN, the broker asks again",
                    messages.check_number,
                    messages.transaction_id,
                    extra={"transaction_id": messages.transaction_id},
                )
                return LocalTransactionState.UNKNOWN, reason_of(error)

    def close(self) -> None:
        """Ends idle threads; a running call keeps its thread until it returns."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[ParamT, ResultT], *args: ParamT.args, **kwargs: ParamT.kwargs) -> ResultT:
        if self._threads is None:
            self._threads = LastingThreads(self._concurrency, thread_name_prefix="halfmq-listener")
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, functools.partial(context.run, call, *args, **kwargs)
        )


def _state(answer: object, method: str) -> LocalTransactionState:
    if isinstance(answer, LocalTransactionState):
        return answer
    msg = f"{method} returned {answer!r}; it must return a LocalTransactionState"
    raise TypeError(msg)


def _failed_execute(messages: HalfMessages, error: Exception) -> Exception:
    # Not a rollback: the exception may have been raised after the local commit.
    _log.error(
        "execute_local_transaction failed for transaction %s; leaving the verdict to a check",
        messages.transaction_id,
        exc_info=error,
        extra={"transaction_id": messages.transaction_id},
    )
    return error
