"""The synchronous producer of transactions: the asynchronous one, run on a background event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from client_core.connection import Connection
from client_core.errors import ConfigurationError
from client_core.message import as_messages
from producer_sdk.async_transaction_producer import AsyncTransactionProducer
from producer_sdk.fencing import AsyncMessageStore, FencingListener, MessageStore, refuse_half_a_fence, refuse_no_work
from producer_sdk.listener import AsyncTransactionListener, TransactionListener, run_execute
from producer_sdk.producer import Producer
from producer_sdk.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from client_core.batching import BatchLimits
    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.message import Message
    from client_core.results import TransactionInfo, TransactionResult, TransactionSendResult
    from client_core.states import TransactionState

__all__ = ["TransactionProducer"]


class _Core(AsyncTransactionProducer):
    """Checks of a fence that blocks run in threads, blocks in those of the callers."""

    _runs_blocking_fences = True


class TransactionProducer(Producer):
    """Sends messages that commit or roll back with a local transaction, and answers checks about them.

    Safe to share between threads; their calls are batched. ``execute_local_transaction`` runs in the thread that called
    ``send_in_transaction``, checks run in separate threads. Without a listener this producer cannot answer checks: such
    transactions wait for another producer of the group, or for an operator.
    """

    _core: AsyncTransactionProducer
    _detached = False

    def __init__(
        self,
        endpoint: Endpoint,
        group: str,
        listener: TransactionListener | MessageStore | None = None,
        *,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        batching: BatchLimits | None = None,
        listener_concurrency: int = 16,
        close_grace: float = 10.0,
    ) -> None:
        """Reads the settings; with a listener, starts to answer checks.

        It does not wait for a broker: see wait_until_registered.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            group: Producer group; all of its members can answer checks of each other's transactions.
            listener: Runs local transactions and answers checks. Or an Outbox: then blocks write their messages into
                the local transaction, and there is nothing to check.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are in flight; None: the defaults of BatchLimits.
            listener_concurrency: Listener calls at a time, at most.
            close_grace: Seconds that ``close()`` waits, at most, for calls in flight.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        if isinstance(listener, AsyncTransactionListener | AsyncMessageStore):
            msg = (
                f"an {type(listener).__name__} needs an AsyncTransactionProducer; pass a TransactionListener or an "
                "Outbox here"
            )
            raise ConfigurationError(msg, field="listener")
        self._outbox = listener if isinstance(listener, MessageStore) else None
        self._listener = None if isinstance(listener, MessageStore) else listener
        self._use(
            _Core(
                endpoint,
                group,
                self._listener,
                client_id=client_id,
                retry=retry,
                tls=tls,
                batching=batching,
                listener_concurrency=listener_concurrency,
                close_grace=close_grace,
            )
        )
        if self._outbox is not None:
            self._outbox.attach(Connection.of(endpoint, tls=tls))
        if isinstance(self._listener, FencingListener):
            self._listener.attach(self._state_of)
        if self._listener is not None:
            # The group may have transactions that wait for a check; without a reachable broker, it retries.
            self.start()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    def wait_until_registered(self, timeout: float | None = None) -> None:
        """Waits until a broker has registered this producer for checks.

        Args:
            timeout: Seconds to wait at most; None: forever.

        Raises:
            TimeoutError: No broker registered it in time.
            ListenerRequired: Without a listener there is nothing to register.
            RequestRefused: A broker refused to register it.
        """
        self._runner.run(self._core.wait_until_registered(timeout))

    def transaction(self, database: Any = None) -> Transaction:
        """Begins a transaction: ``with producer.transaction(session) as tx: tx.send(...)``.

        Args:
            database: With a TransactionFence or an Outbox: the local transaction that shares the messages' fate, as a
                Session, Connection or Engine of SQLAlchemy, a connection of Django's (``django.db.connection``), or a
                connection of PyMySQL, mysqlclient, psycopg or sqlite3. The block begins or joins it, and its end
                commits both.
                Without either: None.

        Raises:
            ConfigurationError: There is a fence or an outbox and no database, the other way round, or it is no
                database.
        """
        self._runner.refuse_if_closed()
        refuse_half_a_fence(self._outbox or self._listener, database)
        if self._outbox is not None:
            return self._outbox.open_block(database)
        core = self._core.bare_transaction()
        if isinstance(self._listener, FencingListener):
            return self._listener.block(core, self._runner, database)
        return Transaction(core, self._runner)

    def send_in_transaction(self, messages: Message | Iterable[Message], arg: Any = None) -> TransactionSendResult:
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
            self._runner.refuse_if_closed()
            return self._outbox.send_in_transaction(as_messages(messages), arg)
        refuse_no_work(self._listener, arg)
        half, _ = self._runner.run(self._core.prepare_for_listener(messages))
        assert self._listener is not None  # noqa: S101 - prepare_for_listener raises without one
        local_state, error = run_execute(self._listener, half, arg)
        return self._runner.run(self._core.conclude(half, local_state, error))

    def prepare(
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
        return self._runner.run(self._core.prepare(messages, transaction_id, first_position, first_check_delay))

    def commit(self, transaction_id: str) -> TransactionResult:
        """Releases the messages of a transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the request; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; repeat it, or leave it to the check.
        """
        return self._runner.run(self._core.commit(transaction_id))

    def rollback(self, transaction_id: str, reason: str = "") -> TransactionResult:
        """Drops the messages of a transaction.

        Args:
            transaction_id: Identity of the transaction.
            reason: Reason, up to 500 characters; recorded with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the request; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded; repeat it, or leave it to the check.
        """
        return self._runner.run(self._core.rollback(transaction_id, reason))

    def get_transaction(self, transaction_id: str) -> TransactionInfo:
        """Returns what the broker knows of a transaction.

        Raises:
            RequestRefused: It is unknown, or the id is malformed.
            ValueError: The id is no text.
            BrokerUnavailable: No broker answered in time.
        """
        return self._runner.run(self._core.get_transaction(transaction_id))

    def _state_of(self, transaction_id: str) -> TransactionState | None:
        return self._runner.run(self._core.state_of(transaction_id))

    def close(self) -> None:
        """Finishes checks and requests under way, then closes the connections. Safe to repeat."""
        if isinstance(self._listener, FencingListener):
            self._listener.detach(self._state_of)
        if self._outbox is not None and not self._detached:
            self._detached = True
            self._outbox.detach()
        super().close()
