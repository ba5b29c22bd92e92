"""The synchronous producer of ordinary messages: the asynchronous one, run on a background event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from client_core.connection import BackgroundRunner
from client_core.old_names import moved
from producer_sdk.async_producer import AsyncProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.batching import BatchLimits
    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.message import LogPosition, Message
    from client_core.times import Span
    from producer_sdk.received import Received

__all__ = ["Producer"]

__getattr__ = moved(
    __name__,
    {"TransactionProducer": "producer_sdk.transaction_producer", "Transaction": "producer_sdk.transaction"},
)


class Producer:
    """Sends ordinary messages, outside of transactions. Safe to share between threads.

    Usable right after construction. Use it with ``with``, or call ``close()`` when done.
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
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are in flight; None: the defaults of BatchLimits.
            close_grace: Seconds that ``close()`` waits, at most, for calls in flight.

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
        """Starts the background tasks; the first call does it too."""
        self._runner.run(self._core.start())

    def close(self) -> None:
        """Waits for calls in flight, then closes the connections. Safe to repeat."""
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
        """Sends one message; consumers see it at once, or at its delivery time. See Message for the arguments.

        Returns:
            Its position, or when it will be delivered. With ``duplicate`` set, the position is that of the earlier
            message with the ``dedup_key``; this one is dropped.

        Raises:
            DuplicateKey: A half message without a verdict has the ``dedup_key``.
            RequestRefused: The broker refused it, or it is larger than any request may be.
            BrokerUnavailable: No broker answered in time; it may or may not have been stored. Resent with
                ``message_id=error.message_ids[0]`` it is stored once.
            BrokerFailed: The same, because a broker failed to process it.
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
        """Sends messages; each is stored independently.

        Returns:
            Their positions or delivery times, in the order of the call; see send.

        Raises:
            BatchRefused: Some were refused or are unconfirmed; it names them, and has the positions of the others.
                Resent under its ``message_ids`` each is stored once.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: As for send; nothing was sent.
        """
        return self._runner.run(self._core.send_many(messages))

    def send_and_ack(
        self, messages: Message | Iterable[Message], received: Received | Iterable[Received]
    ) -> list[LogPosition]:
        """Sends messages and acknowledges those that they were made from, in one step: all of it, or nothing.

        So what is read, transformed and sent on is sent on once, whatever dies in between: until this call took
        effect the received messages are delivered again, and after it they are not.

        Args:
            messages: What to send; one message or several. All are stored, or none is.
            received: What a consumer of the same brokers received; it need not be acked any more.

        Returns:
            The positions or delivery times of the messages, in the order of the call; see send.

        Raises:
            RequestRefused: A message was refused, or a lease has ended, so that its message was, or will be, delivered
                again (``RECEIPT_STALE``, ``RECEIPT_GONE``). Nothing was stored, nothing acknowledged. After an answer
                that was lost it can also be ``RECEIPT_GONE`` if each message was a duplicate by its ``dedup_key``.
            BrokerUnavailable: No broker answered in time; it may or may not have happened, and nothing is to be done:
                what was not acknowledged is delivered again.
            BrokerFailed: The same, because a broker failed to process it.
            TypeError: An argument is of the wrong type.
            ValueError: As for send.
        """
        return self._runner.run(self._core.send_and_ack(messages, received))

    def recall(self, message_ids: str | Iterable[str]) -> list[datetime]:
        """Recalls scheduled messages: no consumer will get them. Safe to repeat.

        Args:
            message_ids: Identity of one message or of several, as returned by send, commit or the transaction.

        Returns:
            When each was recalled (database time, UTC), in the order of the call.

        Raises:
            RecallRefused: The one message is in the log already, was never committed, or is unknown.
            BatchRecallRefused: Some of several messages could not be recalled; it names them.
            BrokerUnavailable: No broker answered in time; the one message may or may not have been recalled.
            TypeError: It is neither a text nor several.
            ValueError: An id is malformed.
        """
        return self._runner.run(self._core.recall(message_ids))
