"""Calls of consumers: each group, with the topics that it reads, is in one cell."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from broker.cells import placing
from broker.cells.items import sought
from broker.domain.cell import given_by, name_of_topic
from broker.domain.lease import Receipt
from broker.domain.limits import MAX_RECEIPTS, MAX_TOPICS_OF_CLIENT, check_count
from broker.errors import BrokerError, InvalidArgument
from broker.wire.status import item_error
from halfmq.v1 import consumer_pb2, consumer_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import grpc

    from broker.cells.cell import Cell
    from broker.cells.routing import Router
    from broker.domain.cell import Name

    _Context = grpc.aio.ServicerContext[object, object]


def _receipt_refused(handle: str, error: BrokerError) -> consumer_pb2.ReceiptResult:
    return consumer_pb2.ReceiptResult(receipt_handle=handle, error=item_error(error))


def _is_elsewhere(error: Any) -> bool:
    # A lease keeps its number when it moves.
    return bool(error.reason == "RECEIPT_GONE")


class ConsumerRouter(consumer_pb2_grpc.ConsumerServiceServicer):
    """ConsumerService over cells."""

    def __init__(self, router: Router) -> None:
        """Takes the router."""
        self._router = router

    def drain(self) -> None:
        """Ends all consume streams and all waits, of all cells."""
        for cell in self._router.cells.each:
            if cell.servicers is not None:
                cell.servicers.consumers.drain()

    async def Consume(
        self, request_iterator: AsyncIterator[consumer_pb2.ConsumeRequest], context: Any
    ) -> AsyncIterator[consumer_pb2.ConsumeResponse]:
        """Serves one consumer, from the cell of its group."""
        requests = aiter(request_iterator)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("event") != "subscribe":
            raise InvalidArgument("The first request on this stream must be subscribe.", field="subscribe")
        own, topics = _reading(first.subscribe)
        async with self._router.cell_of_reader(own, topics) as (cell, names):
            begun = _with_first([first], requests)
            del first
            stream = self._router.stream(cell, names, lambda each: each.consumers.Consume, begun, context)
            async with aclosing(stream) as answers:
                async for response in answers:
                    yield response

    async def Pull(
        self, request: consumer_pb2.PullRequest, context: _Context
    ) -> AsyncIterator[consumer_pb2.PullResponse]:
        """Delivers from the cell of the group."""
        own, topics = _reading(request)
        async with self._router.cell_of_reader(own, topics) as (cell, names):
            stream = self._router.stream(cell, names, lambda each: each.consumers.Pull, request, context)
            async with aclosing(stream) as answers:
                async for response in answers:
                    yield response

    def _hints(self, handles: Sequence[str]) -> dict[int, Cell]:
        found: dict[int, Cell] = {}
        numbers = {cell.number: cell for cell in self._router.cells.each}
        for index, handle in enumerate(handles):
            try:
                cell = numbers.get(given_by(Receipt.parse(handle).lease_id))
            except InvalidArgument:
                continue  # home says so
            if cell is not None:
                found[index] = cell
        return found

    async def _settled(self, request: Any, call: Any) -> list[Any]:
        check_count(len(request.receipt_handles), MAX_RECEIPTS, "receipt_handles")
        hints = self._hints(request.receipt_handles)
        return await sought(self._router, request, "receipt_handles", call, _receipt_refused, hints, _is_elsewhere)

    async def Ack(self, request: consumer_pb2.AckRequest, context: _Context) -> consumer_pb2.AckResponse:
        """Acknowledges in the cells of the leases."""
        results = await self._settled(request, lambda each, part: each.consumers.Ack(part, context))
        return consumer_pb2.AckResponse(results=results)

    async def Nack(self, request: consumer_pb2.NackRequest, context: _Context) -> consumer_pb2.NackResponse:
        """Gives back in the cells of the leases."""
        results = await self._settled(request, lambda each, part: each.consumers.Nack(part, context))
        return consumer_pb2.NackResponse(results=results)

    async def ExtendLease(
        self, request: consumer_pb2.ExtendLeaseRequest, context: _Context
    ) -> consumer_pb2.ExtendLeaseResponse:
        """Extends leases in their cells."""
        results = await self._settled(request, lambda each, part: each.consumers.ExtendLease(part, context))
        return consumer_pb2.ExtendLeaseResponse(results=results)

    async def ReadQueue(
        self, request: consumer_pb2.ReadQueueRequest, context: _Context
    ) -> AsyncIterator[consumer_pb2.ReadQueueResponse]:
        """Reads a queue in the cell of its topic."""
        names = [name_of_topic(request.topic)]
        answers = self._router.stream_there(names, lambda each: each.consumers.ReadQueue, request, context)
        async with aclosing(answers):
            async for response in answers:
                yield response

    async def MeasureQueue(
        self, request: consumer_pb2.MeasureQueueRequest, context: _Context
    ) -> consumer_pb2.MeasureQueueResponse:
        """Measures a queue in the cell of its topic."""
        names = [name_of_topic(request.topic)]
        answer = await self._router.call_there(names, lambda each: each.consumers.MeasureQueue, request, context)
        return answer  # type: ignore[no-any-return]

    async def QueueOffsets(
        self, request: consumer_pb2.QueueOffsetsRequest, context: _Context
    ) -> consumer_pb2.QueueOffsetsResponse:
        """Returns offsets of a topic, in its cell."""
        return await self._by_offset(  # type: ignore[no-any-return]
            request, lambda each: each.consumers.QueueOffsets, context, creates=False
        )

    async def CommitOffsets(
        self, request: consumer_pb2.CommitOffsetsRequest, context: _Context
    ) -> consumer_pb2.CommitOffsetsResponse:
        """Records the progress of a group, in the cell of the topic."""
        return await self._by_offset(request, lambda each: each.consumers.CommitOffsets, context)  # type: ignore[no-any-return]

    async def _by_offset(self, request: Any, method: Any, context: _Context, *, creates: bool = True) -> Any:
        topic = name_of_topic(request.topic)
        if not request.consumer_group:
            return await self._router.call_there([topic], method, request, context)
        own = placing.group(request.consumer_group)
        async with self._router.cell_of_reader(own, [topic], creates=creates) as (cell, names):
            return await self._router.call(cell, names, method, request, context)


def _reading(request: consumer_pb2.Subscribe | consumer_pb2.PullRequest) -> tuple[Name, set[Name]]:
    """The group and the topics of a request."""
    check_count(len(request.topics), MAX_TOPICS_OF_CLIENT, "topics")
    return placing.group(request.consumer_group), {name_of_topic(name) for name in request.topics}


async def _with_first(
    first: list[consumer_pb2.ConsumeRequest], requests: AsyncIterator[consumer_pb2.ConsumeRequest]
) -> AsyncIterator[consumer_pb2.ConsumeRequest]:
    # It may be large, and the stream lasts: nothing here keeps it.
    yield first.pop()
    async for request in requests:
        yield request
