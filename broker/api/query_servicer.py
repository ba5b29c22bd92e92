"""QueryService."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.api.converters import filters, messages
from broker.domain.access import Action, Kind
from broker.domain.ids import parse_message_id
from broker.services.operating.queries import Wanted
from broker.services.rights import CALLER
from broker.wire import times
from halfmq.v1 import query_pb2, query_pb2_grpc, transaction_pb2

if TYPE_CHECKING:
    import grpc

    from broker.ports.queries import TimelineEvent
    from broker.services.operating.queries import MessageQueries

    _Context = grpc.aio.ServicerContext[object, object]


class QueryServicer(query_pb2_grpc.QueryServiceServicer):
    """Finding messages."""

    def __init__(self, queries: MessageQueries) -> None:
        """Takes the service it exposes."""
        self._queries = queries

    async def GetMessage(self, request: query_pb2.GetMessageRequest, context: _Context) -> query_pb2.GetMessageResponse:
        """Finds a message by its id."""
        transaction_id, position = parse_message_id(request.message_id)
        found = await self._queries.message(transaction_id, position, CALLER.get().judge(Action.GET, Kind.TOPIC))
        response = query_pb2.GetMessageResponse(state=messages.state(found.state))
        if found.message is not None:
            messages.fill_log_message(response.message, found.message)
        if found.waiting is not None:
            response.waiting.CopyFrom(messages.half_out(request.message_id, found.waiting))
        if found.scheduled_at is not None:
            response.scheduled_at.CopyFrom(times.timestamp(found.scheduled_at))
        if found.recalled_at is not None:
            response.recalled_at.CopyFrom(times.timestamp(found.recalled_at))
        return response

    async def FindMessages(
        self, request: query_pb2.FindMessagesRequest, context: _Context
    ) -> query_pb2.FindMessagesResponse:
        """Finds messages of a topic by key, by time, by queue and offset, or by several of these."""
        # "from" is a keyword of Python.
        since = getattr(request, "from") if request.HasField("from") else None
        wanted = Wanted(
            request.key,
            None if since is None else times.micros_of_time(since, "from"),
            times.micros_of_time(request.until, "until") if request.HasField("until") else None,
            request.queue if request.HasField("queue") else None,
            request.offset,
            filters.filter_in(request.filter, "filter"),
        )
        found, following = await self._queries.messages(
            request.topic, wanted, page_size=request.page_size, page_token=request.page_token
        )
        response = query_pb2.FindMessagesResponse(next_page_token=following)
        for message in found:
            messages.fill_log_message(response.messages.add(), message)
        return response

    async def GetTimeline(
        self, request: query_pb2.GetTimelineRequest, context: _Context
    ) -> query_pb2.GetTimelineResponse:
        """Returns the events of a message."""
        response = query_pb2.GetTimelineResponse()
        caller = CALLER.get()
        may, may_group = (caller.judge(Action.GET, kind) for kind in (Kind.TOPIC, Kind.GROUP))
        for event in await self._queries.timeline(*parse_message_id(request.message_id), may, may_group):
            await self._add(response, event, request.message_id)
        return response

    async def _add(self, response: query_pb2.GetTimelineResponse, event: TimelineEvent, message_id: str) -> None:
        added = response.events.add(
            type=cast("query_pb2.TimelineEventType.ValueType", int(event.kind)),
            happened_at=times.timestamp(event.happened_at),
            group=event.group,
            client_id=event.client_id,
            number=event.number,
            verdict=cast("transaction_pb2.CheckVerdict.ValueType", int(event.verdict or 0)),
            source=cast("transaction_pb2.VerdictSource.ValueType", int(event.source or 0)),
            reason=event.reason,
        )
        if event.place is not None:
            messages.fill_position(added.position, await self._queries.position(event.place, message_id))
