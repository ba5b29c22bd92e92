"""SinkService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters.transactions import messages_of
from broker.domain.ids import parse_id
from broker.errors import InvalidArgument
from broker.ports.epochs import Epoch
from broker.services.producing.validation import HalfTransaction
from broker.wire.times import timestamp
from halfmq.v1 import sink_pb2, sink_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.services.producing.epochs import EpochService

    _Context = grpc.aio.ServicerContext[object, object]


class SinkServicer(sink_pb2_grpc.SinkServiceServicer):
    """Exactly-once output."""

    def __init__(self, epochs: EpochService) -> None:
        """Takes the service it exposes."""
        self._epochs = epochs

    async def PrepareEpoch(
        self, request: sink_pb2.PrepareEpochRequest, context: _Context
    ) -> sink_pb2.PrepareEpochResponse:
        """Stores half messages of an attempt."""
        self._epochs.limits.check_halves(0, len(request.messages))
        already = await self._epochs.prepare(
            _epoch(request.epoch),
            parse_id(request.attempt_id, "attempt_id"),
            parse_id(request.transaction_id),
            messages_of(request.messages),
        )
        return sink_pb2.PrepareEpochResponse(already_committed=already)

    async def CommitEpoch(
        self, request: sink_pb2.CommitEpochRequest, context: _Context
    ) -> sink_pb2.CommitEpochResponse:
        """Releases an epoch."""
        self._epochs.check_counts(len(request.attempts), [len(each.messages) for each in request.transactions])
        attempts: dict[bytes, int] = {}
        for index, each in enumerate(request.attempts):
            attempt_id = parse_id(each.attempt_id, f"attempts[{index}].attempt_id")
            if attempt_id in attempts:
                raise InvalidArgument("This attempt is named twice.", field=f"attempts[{index}].attempt_id")
            attempts[attempt_id] = each.messages
        transactions = [_transaction(index, each) for index, each in enumerate(request.transactions)]
        position = request.position if request.HasField("position") else None
        after = request.after if request.HasField("after") else None
        done = await self._epochs.commit(_epoch(request.epoch), attempts, transactions, position, after)
        return sink_pb2.CommitEpochResponse(already_committed=done.already, messages=done.messages)

    async def AbortEpoch(self, request: sink_pb2.AbortEpochRequest, context: _Context) -> sink_pb2.AbortEpochResponse:
        """Drops an epoch."""
        return sink_pb2.AbortEpochResponse(already_committed=await self._epochs.abort(_epoch(request.epoch)))

    async def DeleteSink(self, request: sink_pb2.DeleteSinkRequest, context: _Context) -> sink_pb2.DeleteSinkResponse:
        """Deletes a sink."""
        await self._epochs.delete(request.sink)
        return sink_pb2.DeleteSinkResponse()

    async def GetSink(self, request: sink_pb2.GetSinkRequest, context: _Context) -> sink_pb2.GetSinkResponse:
        """Returns the state of a sink."""
        found = await self._epochs.find(request.sink)
        response = sink_pb2.GetSinkResponse()
        response.sink.name, response.sink.query_id = found.name, found.query_id
        response.sink.waiting_messages = found.waiting
        if found.committed_epoch is not None:
            response.sink.committed_epoch = found.committed_epoch
            response.sink.committed_at.CopyFrom(timestamp(found.committed_at or 0))
        if found.position is not None:
            response.sink.position = found.position
        return response


def _epoch(given: sink_pb2.Epoch) -> Epoch:
    return Epoch(given.sink, given.query_id, given.number, given.take_over)


def _transaction(index: int, given: sink_pb2.EpochTransaction) -> HalfTransaction:
    try:
        transaction_id = parse_id(given.transaction_id)
        return HalfTransaction(transaction_id, messages_of(given.messages))
    except InvalidArgument as error:
        raise error.within(f"transactions[{index}]") from None
