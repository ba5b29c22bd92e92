"""The asynchronous consumer; the synchronous one runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from client_core.arguments import check_count, check_seconds
from client_core.connection import BrokerLink, reason_of
from client_core.tracing import current_tracing
from consumer_sdk.handlers import HandlerPool, called_by_handler_of
from consumer_sdk.message import AsyncReceivedMessage, DeliveredMessage, handles_of
from consumer_sdk.outcomes import dead_letters, raise_refusals
from consumer_sdk.reading import queue_offsets, read_queue
from consumer_sdk.receipts import nack_of
from consumer_sdk.settings import PREFETCH_BYTES, settings_from
from consumer_sdk.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.filters import Filters, MessageFilter
    from client_core.message import LogPosition
    from client_core.positions import StartPosition
    from consumer_sdk.applied import AsyncAppliedMessages
    from consumer_sdk.reading import QueueOffset, QueueSlice
    from consumer_sdk.receipts import Nack, ReceiptResults
    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["AsyncConsumer"]

_log = logging.getLogger("halfmq.consumer")

MessageT = TypeVar("MessageT", bound=DeliveredMessage)


class AsyncConsumer:
    """Receives the messages of some topics for a consumer group.

    Each message is delivered to one member of the group under a lease, which is extended while the message is held
    here, and redelivered until it is acked: at least once. Iterate, call ``receive()``, or give a handler to ``run()``.
    Use it with ``async with``, or call ``close()`` when done. It belongs to the event loop of its first call.
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
        check_seconds("close_grace", close_grace, least=0)
        self._settings = settings_from(
            group,
            topics,
            prefetch,
            prefetch_bytes,
            lease_duration,
            client_id,
            longest_hold,
            filter,
            replace_filters,
            start,
        )
        self._link = BrokerLink(endpoint, tls=tls, retry=retry)
        self.subscription = Subscription(self._link, self._settings)
        """The engine, for the synchronous consumer; not for applications."""
        self._close_grace = close_grace
        self._runs: set[asyncio.Task[BaseException | None]] = set()
        self._close_after_run = False

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._settings.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics."""
        return self._settings.topics

    @property
    def client_id(self) -> str:
        """This consumer's name in logs and leases."""
        return self._settings.client_id

    async def start(self) -> None:
        """Subscribes, in the background; the first call does it too."""
        self.subscription.start()

    async def wait_until_subscribed(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - a plain wait
        """Waits until a broker has confirmed the subscription.

        Args:
            timeout: Seconds to wait at most; None: forever.

        Raises:
            TimeoutError: No broker confirmed it in time.
            SubscriptionRefused: A broker refused it.
        """
        self.subscription.start()
        try:
            await asyncio.wait_for(self.subscription.wait_until_subscribed(), timeout)
        except TimeoutError:
            msg = f"no broker confirmed the subscription within {timeout} s; check the endpoints and the broker's log"
            raise TimeoutError(msg) from None

    async def close(self) -> None:
        """Lets handlers finish, returns unsettled messages, then closes the connections. Safe to repeat.

        Called by one of its own handlers it does the same as ``stop()``; ``run()`` closes when the handlers have
        returned.
        """
        if self.put_off_close():
            return
        self.subscription.stop()
        try:
            if self._runs:
                await asyncio.wait(self._runs, timeout=self._close_grace)
            for run in self._runs:
                text = "closing while handlers are at work; their messages are delivered again"
                _log.warning(text, extra=self.subscription.about)
                run.cancel()
            await self.subscription.close(self._close_grace)
        finally:
            await self._link.close()

    def put_off_close(self) -> bool:
        """If called by a handler, stops and leaves the rest of ``close()`` to ``run()``; returns whether it was."""
        if not self._runs or not called_by_handler_of(self.subscription):
            return False
        self._close_after_run = True
        self.stop()
        return True

    async def __aenter__(self) -> Self:
        """Subscribes, in the background."""
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the consumer; after an error, messages that the application received count as tried."""
        self.blame(exc)
        await self.close()

    def blame(self, error: BaseException | None) -> None:
        """Records an error that ends the application's work: a message that always raises must use up its attempts."""
        if isinstance(error, Exception):
            self.subscription.failed_with = reason_of(error)

    def __aiter__(self) -> Self:
        """Iterates over messages as they arrive, until ``stop()`` or ``close()``."""
        return self

    async def __anext__(self) -> AsyncReceivedMessage:
        """Waits for the next message.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            StopAsyncIteration: The consumer was stopped.
        """
        subscription = self.subscription
        if not subscription.stopped:
            subscription.start()
        received = self.receiving()
        deliveries = received(await subscription.receive(1))
        if not deliveries:
            raise StopAsyncIteration
        return AsyncReceivedMessage(deliveries[0], self)

    async def receive(self, max_messages: int = 1, timeout: float | None = None) -> list[AsyncReceivedMessage]:  # noqa: ASYNC109
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
        return [AsyncReceivedMessage(delivery, self) for delivery in await self.deliveries(max_messages, timeout)]

    async def deliveries(self, max_messages: int, timeout: float | None) -> list[pb.Delivery]:  # noqa: ASYNC109
        """Waits for messages in their wire form; see receive."""
        check_count("max_messages", max_messages)
        received = self.receiving()
        return received(await self._deliveries(max_messages, timeout))

    async def _deliveries(self, max_messages: int, timeout: float | None) -> list[pb.Delivery]:  # noqa: ASYNC109
        subscription = self.subscription
        if subscription.stopped:
            return []
        subscription.start()
        taken = subscription.inbox.take(max_messages)
        if taken or timeout == 0:
            return taken
        try:
            async with asyncio.timeout(timeout):
                return await subscription.receive(max_messages)
        except TimeoutError:
            subscription.complain_if_never_reached()
            return []

    def receiving(self) -> Callable[[list[pb.Delivery]], list[pb.Delivery]]:
        """Begins to receive; what it returns is called with what was received, for the application's traces."""
        tracing = current_tracing()
        if tracing is None:
            return _as_they_are
        began, settings = time.time_ns(), self._settings

        def received(deliveries: list[pb.Delivery]) -> list[pb.Delivery]:
            if deliveries:
                messages = [delivery.message for delivery in deliveries]
                tracing.received(messages, settings.group, settings.client_id, began)
            return deliveries

        return received

    async def ack(self, messages: DeliveredMessage | Iterable[DeliveredMessage], *, wait: bool = True) -> None:
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
        handles = handles_of(messages)
        raise_refusals(handles, await self.settle(handles, None, wait=wait))

    async def nack(
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
        said = await self.settle(handles, nack_of(delay, reason), wait=wait)
        raise_refusals(handles, said)
        return dead_letters(handles, said) if wait else []

    async def settle(self, handles: Sequence[str], nack: Nack | None, *, wait: bool) -> ReceiptResults:
        """Acks (``nack=None``) or nacks by receipt handle; returns the broker's outcomes."""
        said: ReceiptResults = {}
        for future in self.subscription.settle(handles, nack, wait=wait):
            said |= await future
        return said

    @overload
    async def run(
        self,
        handler: Callable[[AsyncReceivedMessage], Awaitable[object]] | Callable[[AsyncReceivedMessage], object],
        workers: int = 4,
    ) -> None: ...
    @overload
    async def run(
        self,
        handler: Callable[[AsyncReceivedMessage, Any], Awaitable[object]],
        workers: int = 4,
        *,
        applied: AsyncAppliedMessages,
    ) -> None: ...
    async def run(
        self, handler: Callable[..., object], workers: int = 4, *, applied: AsyncAppliedMessages | None = None
    ) -> None:
        """Passes every message to a handler until ``stop()``: acked when it returns, nacked when it raises.

        Messages of one message group are handled one after the other. Cancelling ``run()`` does what ``stop()`` does;
        running handlers continue for at most ``close_grace`` in ``close()``. A handler that raises SystemExit or the
        like ends ``run()`` as ``stop()`` does; its message is returned, and ``run()`` re-raises the exception.

        Args:
            handler: A coroutine function, or a function, which is called in threads.
            workers: Messages handled at a time.
            applied: Has each effect happen once: the coroutine function is called with the message and an
                AsyncConnection, in a transaction that is committed when it returns, and not at all for what was
                applied before.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
            ConfigurationError: ``applied`` is of another group.
            TypeError: The handler cannot be called, or is no coroutine function though ``applied`` needs one.
        """
        async with contextlib.AsyncExitStack() as while_running:
            if applied is not None:
                handler = applied.handler_for(self.group, handler)
                await while_running.enter_async_context(applied.running(self))
            ended_by = await self.run_wrapped(lambda delivery: AsyncReceivedMessage(delivery, self), handler, workers)
        if ended_by is not None:
            raise ended_by

    async def run_wrapped(
        self, wrap: Callable[[pb.Delivery], MessageT], handler: Callable[[MessageT], Any], workers: int
    ) -> BaseException | None:
        """Implements run() for messages of any type; returns the exception that run() is to raise."""
        if not callable(handler):
            msg = f"handler is a function or a coroutine function that takes one message, not {handler!r}"
            raise TypeError(msg)
        check_count("workers", workers)
        if self.subscription.stopped:
            return None
        self.subscription.start()
        run = asyncio.create_task(HandlerPool(self.subscription, wrap, handler, workers).run())
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            self.stop()
            raise
        finally:
            if self._close_after_run and run.done():
                await self.close()

    def settled_elsewhere(self, message: DeliveredMessage) -> None:
        """Takes note of a message that another call acknowledged; AsyncReceivedMessage.settled_elsewhere does so."""
        self.subscription.settled_elsewhere([message.receipt_handle])

    def stop(self) -> None:
        """Ends iterations and ``run()`` after the messages being handled; safe from any thread and signal handler."""
        self.subscription.stop()

    async def read_queue(
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
        return await read_queue(self._link, topic, queue, offset, max_messages, wait, filter, topic_id)

    async def queue_offsets(
        self, topic: str, group: str | None = None, *, time: datetime | None = None
    ) -> list[QueueOffset]:
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
        return await queue_offsets(self._link, topic, group, time)


def _as_they_are(deliveries: list[pb.Delivery]) -> list[pb.Delivery]:
    return deliveries
