"""Handlers: one message at a time per worker, acked when the handler returns, nacked when it raises."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from client_core.arguments import refuse_unrun
from client_core.connection import is_own_cancellation, reason_of
from client_core.threads import LastingThreads
from client_core.tracing import current_tracing
from consumer_sdk.message import DeliveredMessage
from consumer_sdk.receipts import Nack

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk.subscription import Subscription
    from halfmq.v1 import consumer_pb2 as pb

__all__ = ["HandlerPool", "called_by_handler_of"]

_log = logging.getLogger("halfmq.consumer")

MessageT = TypeVar("MessageT", bound=DeliveredMessage)

# The subscription whose handler is running; inherited by threads of handlers and by their calls on the loop.
_at_work_for: ContextVar[Subscription | None] = ContextVar("_at_work_for", default=None)


def called_by_handler_of(subscription: Subscription) -> bool:
    """Whether the running code is a handler of this subscription, or was called by one."""
    return _at_work_for.get() is subscription


class HandlerPool(Generic[MessageT]):
    """Feeds a handler until the subscription is stopped.

    Messages of one message group are handled one after the other, in order, whatever the number of workers: the next
    one starts when the ack of the previous one was submitted, and none of the same lease after one that failed.
    """

    def __init__(
        self,
        subscription: Subscription,
        wrap: Callable[[pb.Delivery], MessageT],
        handler: Callable[[MessageT], Any],
        workers: int,
    ) -> None:
        """Starts nothing yet.

        Args:
            subscription: Source of the messages.
            wrap: Converts a delivery to the handler's argument.
            handler: A function, called in threads, or a coroutine function, run on the event loop.
            workers: Messages handled at a time.
        """
        self._subscription = subscription
        self._wrap = wrap
        self._handler = handler
        self._workers = workers
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - not whether it is callable, but which kind
        )
        self._ended_by: BaseException | None = None
        self._threads = None if is_async else LastingThreads(workers, thread_name_prefix="halfmq-handler")

    async def run(self) -> BaseException | None:
        """Runs until the subscription is stopped and running handlers have ended.

        Returns:
            An exception of a handler that ends the process, such as SystemExit; ``run()`` raises it in its caller,
            because a task cannot raise it without ending the event loop.

        Raises:
            SubscriptionRefused: The broker refuses the subscription.
        """
        token = _at_work_for.set(self._subscription)
        workers = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        _at_work_for.reset(token)
        try:
            await asyncio.gather(*workers)
            return self._ended_by
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        subscription = self._subscription
        while (delivery := await subscription.receive_in_turn()) is not None:
            following: pb.Delivery | None = delivery
            while following is not None:
                await self._handle(following)
                # Those that still wait for their turn at the end are returned untried.
                following = None if subscription.stopped else subscription.inbox.turn_over(following)

    async def _handle(self, delivery: pb.Delivery) -> None:
        handles = (delivery.receipt_handle,)
        message = self._wrap(delivery)
        try:
            tracing = current_tracing()
            if tracing is None:
                await self._call(message)
            else:
                settings = self._subscription.settings
                with tracing.processing(delivery.message, settings.group, settings.client_id):
                    await self._call(message)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            to_the_end = not isinstance(error, Exception | asyncio.CancelledError)
            if to_the_end:
                self._ended_by = error
                self._subscription.stop()
            _log.exception(
                "the handler failed on message %s (attempt %d); giving it back%s",
                delivery.message.message_id,
                delivery.attempt,
                " and ending run()" if to_the_end else "",
                extra={
                    **self._subscription.about,
                    "message_id": delivery.message.message_id,
                    "topic": delivery.message.topic,
                },
            )
            if not message.settled:
                self._subscription.settle(handles, Nack(reason=reason_of(error)), wait=False)
        else:
            if not message.settled:
                self._subscription.settle(handles, None, wait=False)

    async def _call(self, message: MessageT) -> None:
        if self._threads is None:
            await self._handler(message)
            return
        context = contextvars.copy_context()
        call = functools.partial(context.run, self._handler, message)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        if inspect.isawaitable(result):
            # A plain function that returns a coroutine, such as a lambda around one.
            await result
        else:
            refuse_unrun(result, "handler")
