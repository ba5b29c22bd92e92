"""The synchronous consumer: the asynchronous one, run on a background event loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self, overload

from client_core.arguments import check_count
from client_core.connection import BackgroundRunner
from consumer_sdk.async_consumer import AsyncConsumer
from consumer_sdk.message import ReceivedMessage, handles_of
from consumer_sdk.outcomes import dead_letters, raise_refusals
from consumer_sdk.receipts import nack_of
from consumer_sdk.settings import PREFETCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from types import TracebackType

    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.filters import Filters, MessageFilter
    from client_core.message import LogPosition
    from client_core.positions import StartPosition
    from consumer_sdk.applied import AppliedMessages
    from consumer_sdk.message import DeliveredMessage
    from consumer_sdk.reading import QueueOffset, QueueSlice
    from consumer_sdk.receipts import Nack, ReceiptResults
    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["Consumer"]


class Consumer:
    """Receives the messages of some topics for a consumer group. Safe to share between threads.

    Each message is delivered to one member of the group under a lease, which is extended while the message is held
    here, and redelivered until it is acked: at least once. Usable right after construction: iterate, call
    ``receive()``, or give a handler to ``run()``. Use it with ``with``, or call ``close()`` when done.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        group: str,
        topics: str | Iterable[str],
        *,
        prefetch: int = 256,
        prefetch_bytes: int = PREFETCH_BYTES,
        lease_duration: float | None = None,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        longest_hold: float = 3600.0,
        close_grace: float = 10.0,
        filter: Filters | None = None,  # noqa: A002 - what it is called everywhere
        replace_filters: bool = False,
        start: StartPosition | None = None,
    ) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            group: Consumer group. It must exist, unless the broker creates groups automatically.
            topics: One topic or several.
            prefetch: Maximum number of messages waiting in this process or in flight to it.
            prefetch_bytes: Maximum bytes of their bodies; the last message may exceed it.
            lease_duration: Seconds after which other consumers get this process's messages if it dies, from 0.1 to 12
                h; None: the broker's default. Leases are extended every third of it.
            client_id: This consumer's name in logs and leases; None: host and process number.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            longest_hold: Seconds after which the lease of a message is no longer extended, so that a forgotten message
                goes to another consumer.
            close_grace: Seconds that ``close()`` waits, at most, for running handlers, and again for confirmations.
            filter: The group's filter: a TagFilter or a SqlFilter for all topics, or a mapping for some topics. It
                belongs to the group: all of its consumers name the same one, or none. None: the group's current one.
            replace_filters: Set these filters for the group; without it, a consumer that names other ones than the
                group's is refused.
            start: Where to start in topics that the group never read: "earliest", "latest", or a time with its time
                zone. None: the group's setting.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._core = AsyncConsumer(
            endpoint,
            group,
            topics,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            lease_duration=lease_duration,
            client_id=client_id,
            retry=retry,
            tls=tls,
            longest_hold=longest_hold,
            close_grace=close_grace,
            filter=filter,
            replace_filters=replace_filters,
            start=start,
        )
        self._runner = BackgroundRunner("Consumer")
        self._close_after_run = False

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics."""
        return self._core.topics

    @property
    def client_id(self) -> str:
        """This consumer's name in logs and leases."""
        return self._core.client_id

    def start(self) -> None:
        """Subscribes, in the background; the first call does it too."""
        self._runner.run(self._core.start())

    def wait_until_subscribed(self, timeout: float | None = None) -> None:
        """Waits until a broker has confirmed the subscription.

        Args:
            timeout: Seconds to wait at most; None: forever.

        Raises:
            TimeoutError: No broker confirmed it in time.
            SubscriptionRefused: A broker refused it.
        """
        self._runner.run(self._core.wait_until_subscribed(timeout))

    def close(self) -> None:
        """Lets handlers finish, returns unsettled messages, then closes the connections. Safe to repeat.

        Called by one of its own handlers it does the same as ``stop()``; ``run()`` closes when the handlers have
        returned.
        """
        if self._core.put_off_close():
            self._close_after_run = True
            return
        try:
            if self._runner.started:
                self._runner.run(self._core.close())
        finally:
            self._core.stop()
            self._runner.close()

    def __enter__(self) -> Self:
        """Subscribes, in the background."""
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the consumer; after an error, messages that the application received count as tried."""
        self._core.blame(exc)
        self.close()

    def __iter__(self) -> Self:
        """Iterates over messages as they arrive, until ``stop()`` or ``close()``."""
        return self

    def __next__(self) -> ReceivedMessage:
        """Waits for the next message.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            StopIteration: The consumer was stopped.
        """
        deliveries = self._take(1, None)
        if not deliveries:
            raise StopIteration
        return ReceivedMessage(deliveries[0], self)

    def receive(self, max_messages: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Waits for messages.

        Args:
            max_messages: Maximum number; returns what is available, without waiting for more.
            timeout: Seconds to wait for the first one; None: forever.

        Returns:
            At least one message; none after the timeout, and once the consumer is stopped.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            BrokerUnavailable: The timeout passed, and no broker could be reached since the consumer was created.
        """
        check_count("max_messages", max_messages)
        return [ReceivedMessage(delivery, self) for delivery in self._take(max_messages, timeout)]

    def ack(self, messages: DeliveredMessage | Iterable[DeliveredMessage], *, wait: bool = True) -> None:
        """Marks messages as handled.

        Args:
            messages: One message or several.
            wait: Wait for the broker's confirmation; otherwise refusals are logged, and ``close()`` waits instead.

        Raises:
            StaleReceipt: The lease of the one message has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused the one message for another reason.
            BatchReceiptsRefused: Some of several messages were refused.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
        """
        self._settle(handles_of(messages), None, wait=wait)

    def nack(
        self,
        messages: DeliveredMessage | Iterable[DeliveredMessage],
        *,
        delay: float | None = None,
        reason: str = "",
        wait: bool = True,
    ) -> list[LogPosition | None]:
        """Returns messages; they are delivered again, or moved to the dead letter topic after their last attempt.

        With a message of a message group, all later delivered ones of the group are returned as well, and redelivered
        in order. Those that wait here are dropped; acks of those already received are refused.

        Args:
            messages: One message or several.
            delay: Seconds after which they may be delivered again, up to 12 h; None: the group's retry delays.
            reason: Reason, up to 500 characters; the ``last_error`` of the next delivery.
            wait: Wait for the broker's confirmation; otherwise refusals are logged.

        Returns:
            For each message, its position in the dead letter topic, or None; empty without ``wait``.

        Raises:
            StaleReceipt: The lease of the one message has ended; it was, or will be, delivered again.
            ReceiptRefused: The broker refused the one message for another reason.
            BatchReceiptsRefused: Some of several messages were refused.
            BrokerUnavailable: No broker confirmed it before the retry deadline; it is still sent when one is back.
            TypeError: An argument is of the wrong type.
            ValueError: The delay is out of range; the reason is too long, or cannot be written in UTF-8.
        """
        handles = handles_of(messages)
        said = self._settle(handles, nack_of(delay, reason), wait=wait)
        return dead_letters(handles, said) if wait else []

    @overload
    def run(self, handler: Callable[[ReceivedMessage], object], workers: int = 4) -> None: ...
    @overload
    def run(
        self, handler: Callable[[ReceivedMessage, Any], object], workers: int = 4, *, applied: AppliedMessages
    ) -> None: ...
    def run(self, handler: Callable[..., object], workers: int = 4, *, applied: AppliedMessages | None = None) -> None:
        """Passes every message to a handler until ``stop()``: acked when it returns, nacked when it raises.

        An interrupt (Ctrl-C) does what ``stop()`` does and is raised again.

        Messages of one message group are handled one after the other. A handler that raises SystemExit or
        the like ends ``run()`` as ``stop()`` does; its message is given back, and ``run()`` raises what it raised.

        Args:
            handler: A function, which is called in threads.
            workers: Messages handled at a time.
            applied: Has each effect happen once: the handler is called with the message and a connection, in a
                transaction that is committed when it returns, and not at all for what was applied before.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            ConfigurationError: ``applied`` is of another group.
            TypeError: The handler cannot be called.
        """
        with contextlib.ExitStack() as while_running:
            if applied is not None:
                handler = applied.handler_for(self.group, handler)
                while_running.enter_context(applied.running(self))
            ended_by = self._run(handler, workers)
        if ended_by is not None:
            raise ended_by

    def _run(self, handler: Callable[[ReceivedMessage], object], workers: int) -> BaseException | None:
        running = self._core.run_wrapped(lambda delivery: ReceivedMessage(delivery, self), handler, workers)
        try:
            return self._runner.run(running)
        finally:
            if self._close_after_run:
                self.close()

    def stop(self) -> None:
        """Ends iterations and ``run()`` after the messages being handled; safe from any thread and signal handler."""
        self._core.stop()

    def read_queue(
        self,
        topic: str,
        queue: int,
        offset: int,
        max_messages: int = 32,
        *,
        wait: float | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        topic_id: str | None = None,
    ) -> QueueSlice:
        """Reads messages from an offset on.

        Args:
            topic: Topic.
            queue: Number of the queue within the topic.
            offset: First offset wanted; below the first one kept, reading starts there.
            max_messages: How many to read at most.
            wait: Seconds to wait for the first message when there is none; None: do not wait.
            filter: Only matching messages; the others are skipped and do not count. None: all.
            topic_id: Identity of the offset's topic, from QueueOffset; None: not checked.

        Raises:
            RequestRefused: There is no such topic or queue, another topic has the name by now (``TOPIC_REPLACED``), the
                offset is of a time that a restore of the database undid (``OFFSET_LOST``; the text names the one to go
                on from), or the broker cannot read the filter.
            BrokerUnavailable: No broker answered in time.
        """
        return self._runner.run(
            self._core.read_queue(topic, queue, offset, max_messages, wait=wait, filter=filter, topic_id=topic_id)
        )

    def queue_offsets(self, topic: str, group: str | None = None, *, time: datetime | None = None) -> list[QueueOffset]:
        """Returns the first and last offsets of a topic's queues, and a group's progress.

        Args:
            topic: Topic.
            group: Group whose progress to return.
            time: A time, with its time zone, whose offsets to return.

        Raises:
            RequestRefused: There is no such topic or group.
            BrokerUnavailable: No broker answered in time.
            TypeError: The time is no datetime.
            ValueError: The time has no time zone.
        """
        return self._runner.run(self._core.queue_offsets(topic, group, time=time))

    def settled_elsewhere(self, message: DeliveredMessage) -> None:
        """Takes note of a message that another call acknowledged; ReceivedMessage.settled_elsewhere does so."""
        self._runner.post(self._core.subscription.settled_elsewhere, [message.receipt_handle])

    def _take(self, limit: int, timeout: float | None) -> list[pb.Delivery]:
        subscription = self._core.subscription
        if subscription.stopped:
            return []
        # Waiting messages are taken in this thread: a round trip to the event loop costs more than most handlers.
        if taken := subscription.inbox.take(limit):
            return self._core.receiving()(taken)
        return self._runner.run(self._core.deliveries(limit, timeout))

    def _settle(self, handles: list[str], nack: Nack | None, *, wait: bool) -> ReceiptResults:
        if not wait:
            if nack is not None:
                # Synchronously: the next message that this thread takes must not be one that is returned as well.
                self._core.subscription.break_off(handles)
            self._runner.post(self._submit, handles, nack)
            return {}
        said = self._runner.run(self._core.settle(handles, nack, wait=True))
        raise_refusals(handles, said)
        return said

    def _submit(self, handles: list[str], nack: Nack | None) -> None:
        self._core.subscription.settle(handles, nack, wait=False)
