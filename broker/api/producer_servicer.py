"""ProducerService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters import messages
from broker.domain.ids import parse_message_id
from broker.errors import BrokerError, InvalidArgument
from broker.wire import times
from broker.wire.status import item_error
from halfmq.v1 import producer_pb2, producer_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.services.producing.sending import SendService

    _Context = grpc.aio.ServicerContext[object, object]


class ProducerServicer(producer_pb2_grpc.ProducerServiceServicer):
    """Ordinary messages."""

    def __init__(self, sending: SendService) -> None:
        """Takes the service it exposes."""
        self._sending = sending

    async def Send(self, request: producer_pb2.SendRequest, context: _Context) -> producer_pb2.SendResponse:
        """Appends messages to the log."""
        self._sending.limits.check_items(len(request.messages), "messages")
        items = [messages.ordinary_message(message) for message in request.messages]
        response = producer_pb2.SendResponse()
        for outcome in await self._sending.send(items):
            result = response.results.add()
            if isinstance(outcome, BrokerError):
                result.error.CopyFrom(item_error(outcome))
            else:
                messages.fill_position(result.position, outcome.position)
                result.duplicate = outcome.duplicate
        return response

    async def Recall(self, request: producer_pb2.RecallRequest, context: _Context) -> producer_pb2.RecallResponse:
        """Recalls scheduled messages."""
        self._sending.limits.check_items(len(request.message_ids), "message_ids")
        items = [_message_id(text) for text in request.message_ids]
        response = producer_pb2.RecallResponse()
        for own_id, outcome in zip(request.message_ids, await self._sending.recall(items), strict=True):
            result = response.results.add(message_id=own_id)
            if isinstance(outcome, BrokerError):
                result.error.CopyFrom(item_error(outcome))
            else:
                result.recalled_at.CopyFrom(times.timestamp(outcome))
        return response


def _message_id(text: str) -> tuple[bytes, int] | BrokerError:
    try:
        return parse_message_id(text)
    except InvalidArgument as error:
        return error
