"""ConsumerService."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, cast

from broker.api import heartbeats
from broker.api.converters import columns, deliveries, filters, messages
from broker.domain.access import Action, Kind
from broker.domain.columns import LogColumns
from broker.domain.limits import MAX_CREDITS
from broker.errors import BrokerError, InvalidArgument, Moved, StaleReceipt
from broker.ports.connections import ClientKind
from broker.services.connections import Connected
from broker.services.consuming.subscription import SubscribeRequest
from broker.services.rights import CALLER, CLIENT_ID
from broker.wire import times
from broker.wire.clients import library_of, place_of
from broker.wire.stream_writer import StreamWriter
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc, message_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    import grpc
    from google.protobuf.message import Message as Request

    from broker.domain.clock import Clock
    from broker.domain.message import LogMessage
    from broker.ports.log import QueueSlice
    from broker.services.connections import Connections
    from broker.services.consuming.delivery import DeliveryService
    from broker.services.consuming.reading import QueueReader
    from broker.services.consuming.receipts import ReceiptResults, ReceiptService
    from broker.services.consuming.subscription import Subscription
    from broker.services.judges import Judge
    from broker.services.operating.groups import GroupService
    from broker.services.operating.topics import TopicService
    from broker.services.wakeups import Wakeups
    from broker.wire.response_budget import ResponseBudget

    _Read = Callable[..., Awaitable[QueueSlice[list[LogMessage]] | QueueSlice[LogColumns]]]
    _ConsumeWriter = StreamWriter[consumer_pb2.ConsumeResponse | bytes]
    _ConsumeContext = grpc.aio.ServicerContext[consumer_pb2.ConsumeRequest, AsyncIterator[consumer_pb2.ConsumeResponse]]
    _Context = grpc.aio.ServicerContext[object, object]


class ConsumerServicer(consumer_pb2_grpc.ConsumerServiceServicer):
    """Delivery under leases, and reading by offset."""

    def __init__(
        self,
        delivery: DeliveryService,
        receipts: ReceiptService,
        reader: QueueReader,
        groups: GroupService,
        topics: TopicService,
        wakeups: Wakeups,
        connections: Connections,
        clock: Clock,
        broker_id: str,
        unread: ResponseBudget,
    ) -> None:
        """Takes the services it exposes, the wake-ups, who is connected, the clock, the broker's name, the budget."""
        self._delivery = delivery
        self._receipts = receipts
        self._reader = reader
        self._groups = groups
        self._topics = topics
        self._wakeups = wakeups
        self._connections = connections
        self._clock = clock
        self._broker_id = broker_id
        self._unread = unread
        self._streams: set[_ConsumeWriter] = set()

    def drain(self) -> None:
        """Ends all consume streams and all waits, so that consumers switch to another broker."""
        self._wakeups.drain()
        for writer in self._streams:
            writer.close()

    async def Consume(
        self, request_iterator: AsyncIterator[consumer_pb2.ConsumeRequest], context: _ConsumeContext
    ) -> AsyncIterator[consumer_pb2.ConsumeResponse]:
        """Serves one consumer."""
        wanted = await self._wanted(request_iterator)
        subscribed = consumer_pb2.Subscribed(broker_id=self._broker_id)
        beat: consumer_pb2.ConsumeResponse | bytes = consumer_pb2.ConsumeResponse(heartbeat=message_pb2.Heartbeat())
        heartbeat = heartbeats.agreed(wanted, "subscribe.heartbeat", subscribed, beat)
        subscription = await self._delivery.subscribe(_subscribe_request(wanted))
        del wanted
        subscribed.client_id = subscription.client_id
        CLIENT_ID.set(subscription.client_id)
        times.fill_duration(subscribed.lease_duration, subscription.lease_time)
        subscribed.time.CopyFrom(times.timestamp(self._clock.now()))
        writer: _ConsumeWriter = StreamWriter(partial(self._unread.take, context))
        self._streams.add(writer)
        if self._wakeups.draining:
            # It was opened after the others were ended, so it would not be ended.
            writer.close()
        connected = Connected(
            ClientKind.CONSUMER,
            subscription.client_id,
            place_of(context.peer()),
            library_of(context),
            CALLER.get().name,
            [subscription.group_name],
            subscription.topics,
            subscription.figures,
        )
        try:
            with self._connections.open(connected):
                yield consumer_pb2.ConsumeResponse(subscribed=subscribed)
                async for response in writer.run(
                    self._deliver(subscription, writer),
                    self._take_requests(request_iterator, subscription, writer),
                    heartbeat=heartbeat,
                ):
                    # Serialized messages are passed through: see CallInterceptor.
                    yield cast("consumer_pb2.ConsumeResponse", response)
        finally:
            self._streams.discard(writer)

    async def _wanted(self, requests: AsyncIterator[consumer_pb2.ConsumeRequest]) -> consumer_pb2.Subscribe:
        first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("event") != "subscribe":
            raise InvalidArgument("The first request on this stream must be subscribe.", field="subscribe")
        return first.subscribe

    async def _deliver(self, subscription: Subscription, writer: _ConsumeWriter) -> None:
        async with aclosing(subscription.batches()) as batches:
            async for parts in batches:
                response = consumer_pb2.ConsumeResponse()
                deliveries.add_deliveries(response.deliveries.deliveries, parts)
                handed_out = [part.handed_out() for part in parts]
                ready = response.SerializeToString()
                # While waiting for a slow consumer, the bodies are kept only once.
                del parts, response
                # Messages that were not sent go to the next consumer at once.
                await writer.write(ready, partial(subscription.give_back, handed_out))

    async def _take_requests(
        self,
        requests: AsyncIterator[consumer_pb2.ConsumeRequest],
        subscription: Subscription,
        writer: _ConsumeWriter,
    ) -> None:
        async for request in requests:
            subscription.spoke()
            kind = request.WhichOneof("event")
            if kind == "credits":
                _check_credits(request.credits.messages)
                subscription.grant(request.credits.messages, request.credits.bytes)
                continue
            if kind == "ack":
                acking = self._receipts.ack(request.ack.receipt_handles, _may_settle())
                results = await self._answered(acking, request.ack)
            elif kind == "nack":
                results = await self._answered(self._nack(request.nack), request.nack)
            elif kind == "extend":
                results = await self._answered(self._extend(request.extend), request.extend)
            else:
                raise InvalidArgument("Only credits, ack, nack and extend may follow the subscription.", field="event")
            if any(isinstance(each, StaleReceipt | Moved) for each in results.values()):
                # Their leases may be in another cell by now. Then the stream ends, and the client asks again there.
                await subscription.stay()
            response = consumer_pb2.ConsumeResponse()
            response.outcome.request_id = request.request_id
            if results:
                deliveries.add_receipt_results(
                    response.outcome.results,
                    [handle for handle in getattr(request, kind).receipt_handles if handle in results],
                    results,
                )
            serialized = response.SerializeToString()
            # While waiting for a slow consumer, the answer is kept only once.
            del response, results
            await writer.answer(serialized, len(serialized))

    async def _answered(self, settling: Coroutine[object, object, ReceiptResults], request: Request) -> ReceiptResults:
        # A request that is refused as a whole is refused handle by handle here, so that the stream continues.
        try:
            return await settling
        except BrokerError as error:
            return dict.fromkeys(request.receipt_handles, error)  # type: ignore[attr-defined]

    async def _nack(self, request: consumer_pb2.NackRequest) -> ReceiptResults:
        return await self._receipts.nack(
            request.receipt_handles,
            delay=_optional(request, "delay"),
            reason=request.reason,
            untried=request.untried,
            may=_may_settle(),
        )

    async def _extend(self, request: consumer_pb2.ExtendLeaseRequest) -> ReceiptResults:
        return await self._receipts.extend(request.receipt_handles, _optional(request, "duration"), _may_settle())

    async def Pull(
        self, request: consumer_pb2.PullRequest, context: _Context
    ) -> AsyncIterator[consumer_pb2.PullResponse]:
        """Delivers up to max_messages and ends."""
        _check_credits(request.max_messages)
        subscription = await self._delivery.subscribe(_subscribe_request(request))
        left = request.max_messages or 32
        wait = _optional(request, "wait") or 0
        while left:
            parts = await subscription.wait_and_take(left, wait)
            wait = 0
            if not parts:
                return
            handed_out = [part.handed_out() for part in parts]
            sent = False
            try:
                response = consumer_pb2.PullResponse()
                deliveries.add_deliveries(response.deliveries, parts)
                left -= len(response.deliveries)
                yield response
                sent = True
            finally:
                if not sent:
                    # Messages that were not sent go to the next consumer at once.
                    await asyncio.shield(subscription.give_back(handed_out))

    async def Ack(self, request: consumer_pb2.AckRequest, context: _Context) -> consumer_pb2.AckResponse:
        """Marks messages as handled."""
        results = await self._receipts.ack(request.receipt_handles, _may_settle())
        response = consumer_pb2.AckResponse()
        deliveries.add_receipt_results(response.results, request.receipt_handles, results)
        return response

    async def Nack(self, request: consumer_pb2.NackRequest, context: _Context) -> consumer_pb2.NackResponse:
        """Returns messages for redelivery."""
        results = await self._nack(request)
        response = consumer_pb2.NackResponse()
        deliveries.add_receipt_results(response.results, request.receipt_handles, results)
        return response

    async def ExtendLease(
        self, request: consumer_pb2.ExtendLeaseRequest, context: _Context
    ) -> consumer_pb2.ExtendLeaseResponse:
        """Extends leases."""
        results = await self._extend(request)
        response = consumer_pb2.ExtendLeaseResponse()
        deliveries.add_receipt_results(response.results, request.receipt_handles, results)
        return response

    async def ReadQueue(
        self, request: consumer_pb2.ReadQueueRequest, context: _Context
    ) -> AsyncIterator[consumer_pb2.ReadQueueResponse]:
        """Reads a queue from an offset on."""
        _check_credits(request.max_messages)
        wanted = filters.filter_in(request.filter, "filter")
        left = request.max_messages or 32
        offset = request.offset
        wait = _optional(request, "wait") or 0
        only = columns.columns_in(request.only, "only")
        read: _Read = partial(self._reader.read_columns, only=only) if request.columns else self._reader.read_queue
        first = True
        while left:
            piece = await read(request.topic, request.queue, offset, left, wait, wanted, request.topic_id)
            wait = 0
            if not first and piece.next_offset <= offset:
                return
            first = False
            left -= len(piece.messages)
            offset = max(offset, piece.next_offset)
            response = consumer_pb2.ReadQueueResponse(
                next_offset=offset, min_offset=piece.min_offset, max_offset=piece.max_offset
            )
            if isinstance(piece.messages, LogColumns):
                if piece.messages:
                    columns.fill_log_columns(response.columns, piece.messages, only)
            else:
                for message in piece.messages:
                    messages.fill_log_message(response.messages.add(), message)
            yield response
            if offset >= piece.max_offset:
                return

    async def MeasureQueue(
        self, request: consumer_pb2.MeasureQueueRequest, context: _Context
    ) -> consumer_pb2.MeasureQueueResponse:
        """Returns the size of a part of a queue in bytes."""
        found = await self._reader.measure_queue(
            request.topic, request.queue, request.offset, request.end_offset, request.max_bytes, request.topic_id
        )
        return consumer_pb2.MeasureQueueResponse(end_offset=found.end_offset, bytes=found.bytes)

    async def QueueOffsets(
        self, request: consumer_pb2.QueueOffsetsRequest, context: _Context
    ) -> consumer_pb2.QueueOffsetsResponse:
        """Returns the first and last offsets of queues, and a group's progress."""
        states = await self._topics.queue_states(request.topic, request.consumer_group)
        topic_id = states[0].topic_identity if states else ""
        offsets: Sequence[int] = ()
        if request.HasField("time"):
            time = times.micros_of_time(request.time, "time")
            offsets = await self._topics.offsets_at(request.topic, time, topic_id)
        now = self._clock.now()
        response = consumer_pb2.QueueOffsetsResponse(topic_id=topic_id)
        for state in states:
            entry = response.queues.add(queue=state.queue_no, min_offset=state.min_offset, max_offset=state.max_offset)
            for gap in state.gaps:
                entry.gaps.add(first_offset=gap.first, end_offset=gap.end)
            if request.consumer_group:
                entry.committed_offset = state.committed_offset
                entry.lag = state.lag
                if state.lag and state.waiting_since is not None:
                    times.fill_duration(entry.lag_time, now - state.waiting_since)
            if state.queue_no < len(offsets):
                entry.offset_at_time = offsets[state.queue_no]
        return response

    async def CommitOffsets(
        self, request: consumer_pb2.CommitOffsetsRequest, context: _Context
    ) -> consumer_pb2.CommitOffsetsResponse:
        """Records the progress of a group that reads by offset."""
        offsets = [(each.queue, each.offset) for each in request.queues]
        await self._groups.commit(request.consumer_group, request.topic, offsets, request.topic_id)
        return consumer_pb2.CommitOffsetsResponse()


def _subscribe_request(request: consumer_pb2.Subscribe | consumer_pb2.PullRequest) -> SubscribeRequest:
    return SubscribeRequest(
        group=request.consumer_group,
        topics=list(request.topics),
        client_id=request.client_id,
        lease_time=_optional(request, "lease_duration"),
        filters=filters.topic_filters_in(request.filters),
        replace_filters=request.replace_filters,
        start_at=filters.start_in(request.start, "start") if request.HasField("start") else None,
    )


def _may_settle() -> Judge | None:
    return CALLER.get().judge(Action.SUB, Kind.GROUP)


def _optional(request: Request, field: str) -> int | None:
    return times.micros(getattr(request, field), field) if request.HasField(field) else None


def _check_credits(messages: int) -> None:
    if messages > MAX_CREDITS:
        raise InvalidArgument(f"{messages} messages at once; {MAX_CREDITS} are allowed.", field="messages")
