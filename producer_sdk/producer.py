"""The synchronous producers: the asynchronous ones, run on a background event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from client_core.connection import BackgroundRunner
from client_core.errors import ConfigurationError
from producer_sdk.async_producer import AsyncProducer
from producer_sdk.async_transaction_producer import AsyncTransactionProducer
from producer_sdk.listener import AsyncTransactionListener, TransactionListener, run_execute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.batching import BatchLimits
    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.message import LogPosition, Message
    from client_core.results import TransactionInfo, TransactionResult, TransactionSendResult
    from client_core.times import Span
    from producer_sdk.transaction import AsyncTransaction

__all__ = ["Producer", "Transaction", "TransactionProducer"]


class Producer:
    """Sends ordinary messages, outside of transactions. Safe to share between threads.

    Usable right after construction. Use it with ``with``, or call ``close()`` in the end.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        batching: BatchLimits | None = None,
        close_grace: float = 10.0,
    ) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are tried again; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are under way; None: the defaults of BatchLimits.
            close_grace: Seconds that ``close()`` waits, at most, for what is under way.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._use(
            AsyncProducer(
                endpoint, client_id=client_id, retry=retry, tls=tls, batching=batching, close_grace=close_grace
            )
        )

    def _use(self, core: AsyncProducer) -> None:
        self._core = core
        self._runner = BackgroundRunner(type(self).__name__)

    @property
    def client_id(self) -> str:
        """This producer's name in the broker's logs."""
        return self._core.client_id

    def start(self) -> None:
        """Starts what runs in the background; the first call does it too."""
        self._runner.run(self._core.start())

    def close(self) -> None:
        """Waits for what is under way, then closes the connections. Safe to repeat."""
        try:
            if self._runner.started:
                self._runner.run(self._core.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        """Starts the producer."""
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the producer."""
        self.close()

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        dedup_key: str | None = None,
        message_id: str | None = None,
    ) -> LogPosition:
        """Sends one message; consumers see it at once, or when its time has come. See Message for the arguments.

        Returns:
            Where it lies, or when it will be delivered. With ``duplicate`` set it tells of the message that had the
            ``dedup_key`` before; this one is dropped.

        Raises:
            DuplicateKey: A half message has the ``dedup_key``, and it is open whether it will be dropped.
            RequestRefused: The broker refused it, or it is larger than any request may be.
            BrokerUnavailable: No broker answered in time; it may or may not have been stored. Sent again with
                ``message_id=error.message_ids[0]`` it is one message.
            BrokerFailed: The same, because a broker failed over it.
            TypeError: An argument is of the wrong type.
            ValueError: A text cannot be written in UTF-8, a time has no time zone, an id is no UUID, or two arguments
                exclude each other.
        """
        return self._runner.run(
            self._core.send(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                message_group=message_group,
                deliver_at=deliver_at,
                delay=delay,
                priority=priority,
                dedup_key=dedup_key,
                message_id=message_id,
            )
        )

    def send_many(self, messages: Iterable[Message]) -> list[LogPosition]:
        """Sends messages; each stands for itself.

        Returns:
            Where they lie or when they will be delivered, in the order of the call; see send.

        Raises:
            BatchRefused: Some were refused or are unconfirmed; it says which, and where the others lie. Sent again
                under its ``message_ids`` they are the same messages.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: As for send; nothing was sent.
        """
        return self._runner.run(self._core.send_many(messages))

    def recall(self, message_ids: str | Iterable[str]) -> list[datetime]:
        """Takes back messages that wait for their time: no consumer ever sees them. Safe to repeat.

        Args:
            message_ids: Identity of one message or of several, as send, commit or the transaction told them.

        Returns:
            When each was recalled (database time, UTC), in the order of the call.

        Raises:
            RecallRefused: The one message is in the log already, was never committed, or is not known.
            BatchRecallRefused: Some of several messages could not be taken back; it says which.
            BrokerUnavailable: No broker answered in time; the one message may or may not have been taken back.
            TypeError: It is neither a text nor several.
            ValueError: An id is none at all.
        """
        return self._runner.run(self._core.recall(message_ids))


class TransactionProducer(Producer):
    """Sends messages whose fate is that of a local transaction, and answers for them afterwards.

    Safe to share between threads; their calls travel in common requests. ``execute_local_transaction`` runs in the
    thread that called ``send_in_transaction``, checks run in threads of their own. Without a listener nobody can
    answer checks from this producer: such transactions wait for another producer of the group, or for an operator.
    """

    _core: AsyncTransactionProducer

    def __init__(
        self,
        endpoint: Endpoint,
        group: str,
        listener: TransactionListener | None = None,
        *,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        batching: BatchLimits | None = None,
        listener_concurrency: int = 16,
        close_grace: float = 10.0,
    ) -> None:
        """Reads the settings; with a listener, begins to answer checks.

        It does not wait until a broker is there: see wait_until_registered.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            group: Producer group; all of its members can answer for each other's transactions.
            listener: Runs and answers for local transactions.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are tried again; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are under way; None: the defaults of BatchLimits.
            listener_concurrency: Listener calls at a time, at most.
            close_grace: Seconds that ``close()`` waits, at most, for what is under way.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        if isinstance(listener, AsyncTransactionListener):
            msg = "an AsyncTransactionListener needs an AsyncTransactionProducer; pass a TransactionListener here"
            raise ConfigurationError(msg, field="listener")
        self._use(
            AsyncTransactionProducer(
                endpoint,
                group,
                listener,
                client_id=client_id,
                retry=retry,
                tls=tls,
                batching=batching,
                listener_concurrency=listener_concurrency,
                close_grace=close_grace,
            )
        )
        self._listener = listener
        if listener is not None:
            # The group may have transactions that wait for an answer; where no broker is there, it tries again.
            self.start()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    def wait_until_registered(self, timeout: float | None = None) -> None:
        """Waits until a broker knows this producer and may ask it.

        Args:
            timeout: Seconds to wait at most; None: for ever.

        Raises:
            TimeoutError: No broker registered it in time.
            ListenerRequired: Without a listener there is nothing to register.
            RequestRefused: A broker refused to register it.
        """
        self._runner.run(self._core.wait_until_registered(timeout))

    def transaction(self) -> Transaction:
        """Begins a transaction: ``with producer.transaction() as tx: tx.send(...)``."""
        self._runner.refuse_if_closed()
        return Transaction(self._core.transaction(), self._runner)

    def send_in_transaction(self, messages: Message | Iterable[Message], arg: Any = None) -> TransactionSendResult:
        """Stores half messages, has the listener run the local transaction, and gives the verdict that it names.

        Args:
            messages: One message or several.
            arg: Handed to ``execute_local_transaction``.

        Returns:
            What became of it. An exception of the listener is in it, not raised: a check finds out what it meant.

        Raises:
            ListenerRequired: The producer has no listener.
            RequestRefused: The broker refused the messages; the local transaction was not run.
            PrepareUnconfirmed: It is unknown whether they were stored; the local transaction was not run.
            TransactionRefused: The broker recorded another outcome than the commit that the listener asked for.
            VerdictUnconfirmed: It is unknown whether the commit was recorded; the broker will ask the listener.
        """
        half, _ = self._runner.run(self._core.prepare_for_listener(messages))
        assert self._listener is not None  # noqa: S101 - prepare_for_listener refuses to go on without one
        local_state, error = run_execute(self._listener, half, arg)
        return self._runner.run(self._core.conclude(half, local_state, error))

    def prepare(
        self,
        messages: Message | Iterable[Message],
        transaction_id: str | None = None,
        first_position: int = 0,
        first_check_delay: float | None = None,
    ) -> TransactionResult:
        """Stores half messages durably; the caller gives the verdict later.

        Args:
            messages: One message or several.
            transaction_id: Identity of the transaction, a UUID; None: a new one. The same call with the same id
                again has no further effect.
            first_position: Number of messages that the transaction has already, when more are added to it.
            first_check_delay: Seconds before the first check, at least; None: the broker's default.

        Raises:
            RequestRefused: The broker refused, or they are larger than any request may be; nothing was stored.
            PrepareUnconfirmed: It is unknown whether they were stored.
            TypeError: An argument is of the wrong type.
            ValueError: An argument cannot be.
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
            reason: Why, in up to 500 characters; kept with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome, or does not know the transaction.
            RequestRefused: The broker refused the request; the half messages still wait for a verdict.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded; repeat it, or leave it to the check.
        """
        return self._runner.run(self._core.rollback(transaction_id, reason))

    def get_transaction(self, transaction_id: str) -> TransactionInfo:
        """Asks what the broker knows of a transaction.

        Raises:
            RequestRefused: It knows nothing of it, or the id is none.
            ValueError: The id is no text at all.
            BrokerUnavailable: No broker answered in time.
        """
        return self._runner.run(self._core.get_transaction(transaction_id))


class Transaction:
    """The block of ``with producer.transaction() as tx``.

    Every ``send`` stores its half message durably before it returns. Commit the local transaction after the last of
    them and inside the block; leaving the block normally then releases the messages. When an exception leaves it, the
    producer's listener is asked how the local transaction ended: it may have committed all the same. Without a listener
    an exception drops the messages.
    """

    def __init__(self, core: AsyncTransaction, runner: BackgroundRunner) -> None:
        """Begins with no message; nothing is sent yet."""
        self._core = core
        self._runner = runner

    @property
    def transaction_id(self) -> str:
        """Identity of the transaction; store it along with the local change, so that a check can be answered."""
        return self._core.transaction_id

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Identities of the messages stored so far, in their order."""
        return self._core.message_ids

    @property
    def result(self) -> TransactionResult | None:
        """Where the transaction stands after commit or rollback; None before, and when it had no message."""
        return self._core.result

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        dedup_key: str | None = None,
    ) -> str:
        """Stores one half message durably; consumers see it after the commit. See Message for the arguments.

        Returns:
            The message's id.

        Raises:
            DuplicateKey: Another message has the ``dedup_key``; this one is no part of the transaction.
            RequestRefused: The broker refused the message; it is no part of the transaction.
            PrepareUnconfirmed: It is unknown whether it was stored. The transaction can only be rolled back.
        """
        return self._runner.run(
            self._core.send(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                message_group=message_group,
                deliver_at=deliver_at,
                delay=delay,
                priority=priority,
                dedup_key=dedup_key,
            )
        )

    def send_many(self, messages: Iterable[Message]) -> tuple[str, ...]:
        """Stores several half messages, all or none of them.

        Returns:
            Their ids, in their order.

        Raises:
            RequestRefused: The broker refused one of them; none is part of the transaction.
            PrepareUnconfirmed: It is unknown whether they were stored. The transaction can only be rolled back.
        """
        return self._runner.run(self._core.send_many(messages))

    def rollback(self, reason: str = "") -> None:
        """Drops the messages now; the rest of the block can send no more, and its end does nothing.

        Args:
            reason: Why, in up to 500 characters; kept with the transaction.

        Raises:
            TransactionRefused: The broker recorded another outcome.
            RequestRefused: The broker refused the reason; the messages wait for a check.
            VerdictUnconfirmed: It is unknown whether the rollback was recorded.
            TypeError: The reason is no text; nothing was done.
            ValueError: The reason cannot be written in UTF-8; nothing was done.
        """
        self._runner.run(self._core.rollback(reason))

    def __enter__(self) -> Self:
        """Begins the block."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives the verdict."""
        self._runner.run(self._core.finish(exc))
