"""Around every call: a bound on what is under way, and errors become statuses; unknown ones are logged whole."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import uuid
from typing import TYPE_CHECKING, Any

import grpc

from broker.api.status import abort
from broker.errors import BrokerError, Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

logger = logging.getLogger("halfmq.api")

RETRY_AFTER = 0.2
# Health checks and operators' calls are taken also when there is too much of the rest. The answers of look-ups may be
# large: they have a bound of their own.
BOUNDED = ("/halfmq.v1.TransactionService/", "/halfmq.v1.ProducerService/", "/halfmq.v1.ConsumerService/")
LOOK_UPS = "/halfmq.v1.QueryService/"
MOST_LOOK_UPS = 64


class Load:
    """Counts what is under way, and refuses what is too much."""

    def __init__(self, what: str, most: int) -> None:
        """Takes its name for people, and how many there may be."""
        self._what = what
        self._most = most
        self.under_way = 0

    def __enter__(self) -> None:
        """Counts one more.

        Raises:
            Overloaded: there are too many already.
        """
        if self.under_way >= self._most:
            raise Overloaded(
                f"{self.under_way} {self._what} are under way here, and no more are taken; come back a little later, or"
                " go to another broker.",
                retry_after=RETRY_AFTER,
            )
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        """Counts one less."""
        self.under_way -= 1


_UNBOUNDED = Load("calls", sys.maxsize)


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of servicers into gRPC statuses, and refuses calls when too many are under way.

    Attributes:
        calls, streams: what is under way, also for servicers that tell of errors in another way.
    """

    def __init__(self, *, max_calls: int, max_streams: int) -> None:
        """Takes how many calls, and how many streams, may be under way at a time."""
        self.calls = Load("calls", max_calls)
        self.streams = Load("streams", max_streams)
        self._look_ups = Load("look-ups", MOST_LOOK_UPS)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the method that the call is for."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if method.startswith(LOOK_UPS):
            calls, streams = self._look_ups, self._look_ups
        elif not method.startswith(BOUNDED):
            calls, streams = _UNBOUNDED, _UNBOUNDED
        else:
            calls, streams = self.calls, self.streams
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _wrap_unary(handler.unary_unary, method, calls),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _wrap_stream(handler.unary_stream, method, streams),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                _wrap_stream(handler.stream_stream, method, streams),
                handler.request_deserializer,
                _or_ready(handler.response_serializer),
            )
        return handler


def _or_ready(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes what is serialized already, so that nobody has to keep the message beside its bytes."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)


def _wrap_unary(inner: Callable[[Any, Any], Awaitable[Any]], method: str, load: Load) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            with load:
                return await inner(request, context)
        except (BrokerError, Exception) as error:
            return await _end(context, method, error)

    return call


def _wrap_stream(inner: Callable[[Any, Any], Any], method: str, load: Load) -> Any:
    if not inspect.isasyncgenfunction(inner):
        # It writes to the context itself, as grpc's own health service does.
        return _wrap_unary(inner, method, load)

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            with load:
                async for response in inner(request, context):
                    yield response
        except (BrokerError, Exception) as error:
            await _end(context, method, error)

    return call


async def _end(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> None:
    if isinstance(error, BrokerError):
        await abort(context, error)
    if isinstance(error, grpc.aio.AbortError | asyncio.CancelledError):
        raise error
    if isinstance(error, grpc.aio.InternalError):
        # gRPC's word for a stream that broke while it was written to: nobody is there to be answered.
        logger.info("the client of %s is gone: %s", method, error)
        return
    incident = uuid.uuid4().hex[:12]
    logger.error("unexpected error in %s, incident %s", method, incident, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"Internal error; the broker's log tells more, incident {incident}.")
