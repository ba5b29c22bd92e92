"""The asynchronous transactional producer; the synchronous one runs it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc

from client_core.arguments import check_count, check_name
from client_core.connection import Connection
from client_core.encoding import to_wire
from client_core.errors import ConfigurationError, ListenerRequired, RequestRefused, VerdictUnconfirmed
from client_core.ids import new_id, plausible_id
from client_core.message import HalfMessages, Message, as_messages
from client_core.results import (
    TransactionInfo,
    TransactionResult,
    TransactionSendResult,
    message_ids,
    transaction_info,
)
from client_core.states import LocalTransactionState, TransactionState
from halfmq.v1 import transaction_pb2
from producer_sdk.async_producer import AsyncProducer
from producer_sdk.async_transaction import AsyncTransaction
from producer_sdk.checks import CheckStream
from producer_sdk.fencing import (
    AsyncFencingListener,
    AsyncMessageStore,
    FencingListener,
    MessageStore,
    refuse_half_a_fence,
    refuse_no_work,
)
from producer_sdk.listener import AsyncTransactionListener, ListenerCaller, TransactionListener
from producer_sdk.own_check import OwnCheck
from producer_sdk.transaction_calls import TransactionCalls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.batching import BatchLimits
    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from producer_sdk.listener import AnyListener

__all__ = ["AsyncTransactionProducer"]

_log = logging.getLogger("halfmq.producer")
MAX_GROUP_NAME = 120
"""Characters."""


class AsyncTransactionProducer(AsyncProducer):
    """Sends messages that commit or roll back with a local transaction, and answers checks about them.

    With a listener it holds a check stream to one of the brokers, on which it gets checks of its group's transactions
    without a verdict. Without a listener there is no stream, and such transactions wait for another producer of the
    group, or for an operator.
    """

    _runs_blocking_fences = False

    def __init__(
        self,
        endpoint: Endpoint,
        group: str,
        listener: AnyListener | AsyncMessageStore | None = None,
        *,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        batching: BatchLimits | None = None,
        listener_concurrency: int = 16,
        close_grace: float = 10.0,
    ) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            group: Producer group; all of its members can answer checks of each other's transactions.
            listener: Runs local transactions and answers checks. A synchronous one is called in threads. Or an
                AsyncOutbox: then blocks write their messages into the local transaction, and there is nothing to check.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are in flight; None: the defaults of BatchLimits.
            listener_concurrency: Listener calls at a time, at most.
            close_grace: Seconds that ``close()`` waits, at most, for calls in flight.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        super().__init__(
            endpoint, client_id=client_id, retry=retry, tls=tls, batching=batching, close_grace=close_grace
        )
        check_name(
            "group", group, "is a text: the name under which this producer's transactions are checked", MAX_GROUP_NAME
        )
        if isinstance(listener, MessageStore):
            msg = "an Outbox blocks: give an AsyncTransactionProducer an AsyncOutbox(async_engine)"
            raise ConfigurationError(msg, field="listener")
        self._outbox = listener if isinstance(listener, AsyncMessageStore) else None
        self._outbox_ready: asyncio.Task[None] | None = None
        self._connection = Connection.of(endpoint, tls=tls) if self._outbox is not None else None
        listener = None if isinstance(listener, AsyncMessageStore) else listener
        if listener is not None and not isinstance(listener, TransactionListener | AsyncTransactionListener):
            msg = f"listener is a TransactionListener or an AsyncTransactionListener, not {type(listener).__name__}"
            raise ConfigurationError(msg, field="listener")
        if isinstance(listener, FencingListener) and not self._runs_blocking_fences:
            msg = "a TransactionFence blocks: give an AsyncTransactionProducer an AsyncTransactionFence(async_engine)"
            raise ConfigurationError(msg, field="listener")
        check_count("listener_concurrency", listener_concurrency)
        self.group = group
        self._calls = TransactionCalls(self._link, group, self._limits, self.client_id)
        self._listener = ListenerCaller(listener, listener_concurrency) if listener is not None else None
        self._checks = (
            CheckStream(self._link, group, self.client_id, self._listener) if self._listener is not None else None
        )
        self._own_check = OwnCheck(self._listener) if self._listener is not None else None
        if isinstance(listener, AsyncFencingListener):
            listener.attach(self.state_of)

    async def wait_until_registered(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - a plain wait
        """Waits until a broker has registered this producer for checks.

        Args:
            timeout: Seconds to wait at most; None: forever.

        Raises:
            TimeoutError: No broker registered it in time.
            ListenerRequired: Without a listener there is nothing to register.
            RequestRefused: A broker refused to register it.
        """
        self._begin()
        if self._checks is None:
            msg = "a producer without a listener does not register for checks; pass listener="
            raise ListenerRequired(msg)
        try:
            await asyncio.wait_for(self._checks.wait_until_registered(), timeout)
        except TimeoutError:
            msg = f"no broker registered this producer within {timeout} s; check the endpoints and the broker's log"
            raise TimeoutError(msg) from None

    def transaction(self, database: Any = None) -> AsyncTransaction:
        """Begins a transaction: ``async with producer.transaction(session) as tx: await tx.send(...)``.

        Args:
            database: With an AsyncTransactionFence or an AsyncOutbox: the AsyncSession, AsyncConnection or AsyncEngine
                of SQLAlchemy whose transaction shares the messages' fate. The block begins or joins it, and its end
                commits both.
                Without either: None.

        Raises:
            ConfigurationError: There is a fence or an outbox and no database, or the other way round.
        """
        listener = self._listener.listener if self._listener is not None else None
        refuse_half_a_fence(self._outbox or listener, database)
        core = self.bare_transaction()
        if self._outbox is not None:
            self._begin_to_relay()
            return self._outbox.open_block(core, database)
        return listener.block(core, database) if isinstance(listener, AsyncFencingListener) else core

    def bare_transaction(self) -> AsyncTransaction:
        """A transaction whose local part is the caller's business."""
        # Nothing starts before the first message: the synchronous producer calls this outside of the event loop.
        self._refuse_if_closed()
        return AsyncTransaction(self._calls, self._begin, self._own_check)

    async def send_in_transaction(
        self, messages: Message | Iterable[Message], arg: Any = None
    ) -> TransactionSendResult:
        """Stores half messages, has the listener run the local transaction, and sends the listener's verdict.

        Args:
            messages: One message or several.
            arg: Passed to ``execute_local_transaction``.

        Returns:
            The outcome. An exception of the listener is in it, not raised: a check determines the outcome.

        Raises:
            ListenerRequired: The producer has no listener.
            RequestRefused: The broker refused the messages; the local transaction was not run.
            PrepareUnconfirmed: It is unknown whether they were stored; the local transaction was not run.
            TransactionRefused: The broker recorded another outcome than the commit that the listener asked for.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; the broker will ask the listener.
        """
        if self._outbox is not None:
            self._begin()
            return await self._outbox.send_in_transaction(as_messages(messages), arg)
        if self._listener is not None:
            refuse_no_work(self._listener.listener, arg)
        half, listener = await self.prepare_for_listener(messages)
        local_state, error = await listener.execute(half, arg)
        return await self.conclude(half, local_state, error)

    async def prepare_for_listener(self, messages: Message | Iterable[Message]) -> tuple[HalfMessages, ListenerCaller]:
        """The first step of ``send_in_transaction``, for callers that run the listener themselves."""
        self._begin()
        if self._listener is None:
            msg = "send_in_transaction runs the listener; pass listener= to the producer, or use transaction()"
            raise ListenerRequired(msg)
        listed = as_messages(messages)
        transaction_id = new_id()
        await self._calls.prepare(transaction_id, [to_wire(message) for message in listed])
        return HalfMessages(transaction_id, listed), self._listener

    async def conclude(
        self, half: HalfMessages, local_state: LocalTransactionState, local_error: Exception | None
    ) -> TransactionSendResult:
        """The last step of ``send_in_transaction``: sends the listener's verdict."""
        result = TransactionResult(half.transaction_id, TransactionState.PREPARED)
        if local_state is LocalTransactionState.COMMIT:
            result = await self._calls.commit(half.transaction_id)
        elif local_state is LocalTransactionState.ROLLBACK:
            try:
                result = await self._calls.rollback(half.transaction_id, "the listener said ROLLBACK")
            except VerdictUnconfirmed as error:
                # Waiting is safe: consumers do not see the messages, and a check gets the same answer.
                _log.warning("%s", error, extra={"transaction_id": half.transaction_id})
        return TransactionSendResult(
            transaction_id=half.transaction_id,
            message_ids=message_ids(half.transaction_id, len(half)),
            local_state=local_state,
            state=result.state,
            released=result.released,
            local_error=local_error,
        )

    async def prepare(
        self,
        messages: Message | Iterable[Message],
        transaction_id: str | None = None,
        first_position: int = 0,
        first_check_delay: float | None = None,
    ) -> TransactionResult:
        """Stores half messages durably; the caller sends the verdict later.

        Args:
            messages: One message or several.
            transaction_id: Identity of the transaction, a UUID; None: a new one. Repeating the call with the same id
                has no further effect.
            first_position: Number of messages that the transaction has already, when more are added to it.
            first_check_delay: Seconds before the first check, at least; None: the broker's default.

        Raises:
            RequestRefused: The broker refused, or they are larger than any request may be; nothing was stored.
            PrepareUnconfirmed: It is unknown whether they were stored.
            TypeError: An argument is of the wrong type.
            ValueError: An argument is invalid.
        """
        self._begin()
        encoded = [to_wire(message) for message in as_messages(messages)]
        chosen = new_id() if transaction_id is None else plausible_id("a transaction id", transaction_id)
        return await self._calls.prepare(chosen, encoded, first_position, first_check_delay)

    async def commit(self, transaction_id: str) -> TransactionResult:
        """Releases the messages of a transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the request; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; repeat it, or leave it to the check.
        """
        self._begin()
        return await self._calls.commit(plausible_id("a transaction id", transaction_id))

    async def rollback(self, transaction_id: str, reason: str = "") -> TransactionResult:
        """Drops the messages of a transaction.

        Args:
            transaction_id: Identity of the transaction.
            reason: Reason, up to 500 characters; recorded with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the request; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded; repeat it, or leave it to the check.
        """
        self._begin()
        return await self._calls.rollback(plausible_id("a transaction id", transaction_id), reason)

    async def state_of(self, transaction_id: str) -> TransactionState | None:
        """Where the broker says a transaction stands; None: it knows nothing of it.

        Raises:
            BrokerUnavailable: No broker answered in time.
        """
        try:
            return (await self.get_transaction(transaction_id)).state
        except RequestRefused as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                return None
            raise

    async def get_transaction(self, transaction_id: str) -> TransactionInfo:
        """Returns what the broker knows of a transaction.

        Raises:
            RequestRefused: It is unknown, or the id is malformed.
            ValueError: The id is no text.
            BrokerUnavailable: No broker answered in time.
        """
        self._begin()
        request = transaction_pb2.GetTransactionRequest(transaction_id=plausible_id("a transaction id", transaction_id))
        response = await self._link.call(lambda broker: broker.transactions.GetTransaction, request)
        return transaction_info(response.transaction)

    def _begin(self) -> None:
        super()._begin()
        if self._checks is not None:
            self._checks.start()
        if self._outbox is not None:
            self._begin_to_relay()

    def _begin_to_relay(self) -> None:
        if self._outbox is not None and self._connection is not None and self._outbox_ready is None:
            self._outbox_ready = asyncio.get_running_loop().create_task(self._outbox.attach(self._connection))

    async def _drain(self) -> None:
        await super()._drain()
        await self._calls.drain()

    async def close(self) -> None:
        """Finishes checks and requests in flight, then closes the connections. Safe to repeat."""
        if self._closed:
            return
        self._link.bind()
        if self._outbox is not None and self._outbox_ready is not None:
            ready, self._outbox_ready = self._outbox_ready, None
            await asyncio.wait([ready])
            if not ready.cancelled() and ready.exception() is not None:
                _log.warning("the outbox was not relayed: %s", ready.exception())
            await self._outbox.detach()
        if self._own_check is not None:
            await self._own_check.close(self._close_grace)
        if self._listener is not None and isinstance(self._listener.listener, AsyncFencingListener):
            await self._listener.listener.detach(self.state_of)
        if self._checks is not None:
            await self._checks.close(self._close_grace)
        if self._listener is not None:
            self._listener.close()
        await super().close()
