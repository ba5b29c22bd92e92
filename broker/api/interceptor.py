"""Around every call: errors become statuses, unknown ones are logged whole and answered blandly."""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from typing import TYPE_CHECKING, Any

import grpc

from broker.api.status import abort
from broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

logger = logging.getLogger("halfmq.api")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of servicers into gRPC statuses."""

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
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _wrap_unary(handler.unary_unary, method), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _wrap_stream(handler.unary_stream, method), handler.request_deserializer, handler.response_serializer
            )
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(
                _wrap_stream(handler.stream_stream, method), handler.request_deserializer, handler.response_serializer
            )
        return handler


def _wrap_unary(inner: Callable[[Any, Any], Awaitable[Any]], method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await inner(request, context)
        except (BrokerError, Exception) as error:
            return await _end(context, method, error)

    return call


def _wrap_stream(inner: Callable[[Any, Any], Any], method: str) -> Any:
    if not inspect.isasyncgenfunction(inner):
        # It writes to the context itself, as grpc's own health service does.
        return _wrap_unary(inner, method)

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
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
