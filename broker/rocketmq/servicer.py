"""MessagingService: every call of RocketMQ's protocol, and error reporting."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from broker.errors import BrokerError, ClientOverloaded, release
from broker.rocketmq.access import judge
from broker.rocketmq.codes import OK, Unauthorized, Unsupported, grpc_code_of, status, status_of
from broker.rocketmq.protocol import Code, service_pb2, service_pb2_grpc
from broker.services.rights import CALLER
from broker.wire.request_ids import ids_of_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from broker.rocketmq.calls import Caller, Callers
    from broker.rocketmq.clients import Clients
    from broker.rocketmq.consuming import Consuming
    from broker.rocketmq.offsets import Offsets
    from broker.rocketmq.producing import Producing
    from broker.rocketmq.routes import Routes
    from broker.wire.client_limits import ClientLimits
    from broker.wire.concurrency_limit import ConcurrencyLimit

    _Work = Callable[[Any, Caller], Awaitable[Any]]
    _Stream = Callable[[Any, Caller], AsyncGenerator[Any, None]]

logger = logging.getLogger("halfmq.rocketmq")


class MessagingServicer(service_pb2_grpc.MessagingServiceServicer):  # type: ignore[misc]
    """The calls; errors are reported in the status of the answer, as RocketMQ's clients expect."""

    def __init__(
        self,
        callers: Callers,
        clients: Clients,
        routes: Routes,
        producing: Producing,
        consuming: Consuming,
        offsets: Offsets,
        *,
        calls: ConcurrencyLimit,
        streams: ConcurrencyLimit,
        limits: ClientLimits,
    ) -> None:
        """Takes the authentication, the calls' parts, and the load limits: of all, and of each client."""
        self._limits = limits
        self._callers = callers
        self._clients = clients
        self._routes = routes
        self._producing = producing
        self._consuming = consuming
        self._offsets = offsets
        self._calls = calls
        self._streams = streams

    async def QueryRoute(self, request: Any, context: Any) -> Any:
        """Returns a topic's route."""
        return await self._answer(context, request, self._routes.query_route, service_pb2.QueryRouteResponse)

    async def QueryAssignment(self, request: Any, context: Any) -> Any:
        """Returns a push consumer's assignments."""
        return await self._answer(context, request, self._routes.query_assignment, service_pb2.QueryAssignmentResponse)

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        """Records that a client is alive."""
        return await self._answer(context, request, self._heartbeat, service_pb2.HeartbeatResponse)

    async def _heartbeat(self, request: Any, caller: Caller) -> Any:
        self._clients.heard(caller.named(), request.client_type)
        return service_pb2.HeartbeatResponse(status=OK)

    async def NotifyClientTermination(self, request: Any, context: Any) -> Any:
        """Handles the termination of a client."""
        return await self._answer(context, request, self._left, service_pb2.NotifyClientTerminationResponse)

    async def _left(self, request: Any, caller: Caller) -> Any:
        self._clients.left(caller.named())
        return service_pb2.NotifyClientTerminationResponse(status=OK)

    async def SendMessage(self, request: Any, context: Any) -> Any:
        """Stores messages."""
        return await self._answer(context, request, self._producing.send, service_pb2.SendMessageResponse)

    async def EndTransaction(self, request: Any, context: Any) -> Any:
        """Handles a verdict."""
        return await self._answer(context, request, self._producing.end_transaction, service_pb2.EndTransactionResponse)

    async def RecallMessage(self, request: Any, context: Any) -> Any:
        """Recalls a message."""
        return await self._answer(context, request, self._producing.recall, service_pb2.RecallMessageResponse)

    async def AckMessage(self, request: Any, context: Any) -> Any:
        """Marks messages as handled."""
        return await self._answer(context, request, self._consuming.ack, service_pb2.AckMessageResponse)

    async def ChangeInvisibleDuration(self, request: Any, context: Any) -> Any:
        """Extends the lease of a message, or nacks it."""
        response = await self._answer(
            context,
            request,
            self._consuming.change_invisible_duration,
            service_pb2.ChangeInvisibleDurationResponse,
        )
        if request is not None:
            response.receipt_handle = response.receipt_handle or request.receipt_handle
        return response

    async def ForwardMessageToDeadLetterQueue(self, request: Any, context: Any) -> Any:
        """Moves a message to the dead letters."""
        return await self._answer(
            context,
            request,
            self._consuming.forward_to_dead_letters,
            service_pb2.ForwardMessageToDeadLetterQueueResponse,
        )

    async def UpdateOffset(self, request: Any, context: Any) -> Any:
        """Records a group's progress."""
        return await self._answer(context, request, self._offsets.update, service_pb2.UpdateOffsetResponse)

    async def GetOffset(self, request: Any, context: Any) -> Any:
        """Returns a group's progress."""
        return await self._answer(context, request, self._offsets.get, service_pb2.GetOffsetResponse)

    async def QueryOffset(self, request: Any, context: Any) -> Any:
        """Returns the first or last offset of a queue."""
        return await self._answer(context, request, self._offsets.query, service_pb2.QueryOffsetResponse)

    async def SyncLiteSubscription(self, request: Any, context: Any) -> Any:
        """Refuses: lite topics are not supported."""
        return await self._answer(context, request, _no_lite_topics, service_pb2.SyncLiteSubscriptionResponse)

    async def ReceiveMessage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Delivers messages."""
        async for response in self._stream(
            context, request, self._consuming.receive, service_pb2.ReceiveMessageResponse
        ):
            yield response

    async def PullMessage(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Reads a queue."""
        async for response in self._stream(context, request, self._offsets.pull, service_pb2.PullMessageResponse):
            yield response

    async def Telemetry(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Exchanges settings, and sends checks.

        Invalid settings end it, with a status and with a gRPC error: some clients only check the one, some only the
        other.
        """
        try:
            with self._streams:
                caller = self._callers.caller(context)
                with self._limits.stream(CALLER.get().name, context.peer()), CALLER.get().stream():
                    async with aclosing(self._clients.telemetry(request_iterator, caller, context.peer())) as commands:
                        async for each in commands:
                            self._callers.look_again(context)
                            yield each
        except (BrokerError, Exception) as error:
            await self._pause(error)
            told = _told(error)
            yield service_pb2.TelemetryCommand(status=told)
            context.set_code(grpc_code_of(error))
            context.set_details(told.message)

    async def _answer(self, context: Any, request: Any, work: _Work, response: Any) -> Any:
        try:
            with self._calls:
                caller = self._known(request, context)
                with self._limits.call(CALLER.get().name, context.peer()) as client, self._limits.turn(client) as turn:
                    if turn.waits:
                        await turn.begin()
                    judge(request, caller)
                    return await work(request, caller)
        except (BrokerError, Exception) as error:
            await self._pause(error)
            return response(status=_told(error, request))

    async def _pause(self, error: Exception) -> None:
        """Refusals of one client are told one by one."""
        if isinstance(error, ClientOverloaded):
            await self._limits.wait(error.pause)

    def _known(self, request: Any, context: Any) -> Caller:
        """Who makes a call; the request of a caller who was not known has not been read, and is None."""
        caller = self._callers.caller(context)
        if request is None:
            # It would be known now: the keys were replaced in between.
            raise Unauthorized("The call came before its access key was known here; make it again.")
        return caller

    async def _stream(self, context: Any, request: Any, work: _Stream, response: Any) -> AsyncIterator[Any]:
        try:
            with self._streams:
                caller = self._known(request, context)
                judge(request, caller)
                with self._limits.stream(CALLER.get().name, context.peer()), CALLER.get().stream():
                    async with aclosing(work(request, caller)) as parts:
                        async for each in parts:
                            # It may have waited for long, and the keys or the rules have changed.
                            self._callers.look_again(context)
                            judge(request, caller)
                            yield each
        except (BrokerError, Exception) as error:
            await self._pause(error)
            yield response(status=_told(error, request))


async def _no_lite_topics(request: Any, caller: Caller) -> Any:
    raise Unsupported("There are no lite topics here; use a topic, with message groups or tags.")


def _told(error: Exception, request: Any = None) -> Any:
    if isinstance(error, BrokerError):
        told = status_of(error)
        release(error)
        return told
    if isinstance(error, grpc.aio.AbortError | grpc.aio.InternalError | asyncio.CancelledError):
        raise error
    incident = uuid.uuid4().hex[:12]
    text = "unexpected error in a call of RocketMQ's protocol, incident %s"
    about = {**ids_of_request(request), "incident": incident}
    logger.error(text, incident, exc_info=error, extra=about)
    release(error)
    text = f"INTERNAL_SERVER_ERROR: the broker's log tells more, incident {incident}."
    return status(Code.INTERNAL_SERVER_ERROR, text)
