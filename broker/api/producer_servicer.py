"""ProducerService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters import messages
from broker.domain.access import Action, Kind, Need
from broker.domain.ids import parse_message_id
from broker.errors import BrokerError, Denied, InvalidArgument
from broker.services.rights import CALLER
from broker.wire import times
from broker.wire.status import item_error
from halfmq.v1 import producer_pb2, producer_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.services.forwarding import ForwardService
    from broker.services.producing.sending import OrdinaryMessage, SendService, Sent

    _Context = grpc.aio.ServicerContext[object, object]


class ProducerServicer(producer_pb2_grpc.ProducerServiceServicer):
    """Ordinary messages."""

    def __init__(self, sending: SendService, forwarding: ForwardService) -> None:
        """Takes the services it exposes."""
        self._sending = sending
        self._forwarding = forwarding

    async def Send(self, request: producer_pb2.SendRequest, context: _Context) -> producer_pb2.SendResponse:
        """Appends messages to the log."""
        self._sending.limits.check_items(len(request.messages), "messages")
        caller = CALLER.get()
        may = caller.judge(Action.PUB, Kind.TOPIC)
        items: list[OrdinaryMessage | BrokerError] = []
        for message in request.messages:
            if may is None or may(message.topic):
                items.append(messages.ordinary_message(message))
            else:
                caller.denied(Need(Action.PUB, Kind.TOPIC, message.topic))
                items.append(Denied().as_outcome())
        response = producer_pb2.SendResponse()
        for outcome in await self._sending.send(items, in_order=request.in_order):
            result = response.results.add()
            if isinstance(outcome, BrokerError):
                result.error.CopyFrom(item_error(outcome))
            else:
                _fill(result, outcome)
        return response

    async def SendAndAck(
        self, request: producer_pb2.SendAndAckRequest, context: _Context
    ) -> producer_pb2.SendAndAckResponse:
        """Appends messages to the log, and acknowledges those that they were made from."""
        self._sending.limits.check_items(len(request.messages), "messages")
        may = CALLER.get().judge(Action.SUB, Kind.GROUP)
        items = []
        for index, message in enumerate(request.messages):
            item = messages.ordinary_message(message)
            if isinstance(item, InvalidArgument):
                raise item.within(f"messages[{index}]")
            if isinstance(item, BrokerError):
                raise item
            items.append(item)
        response = producer_pb2.SendAndAckResponse()
        for outcome in await self._forwarding.send_and_ack(items, request.receipt_handles, may):
            _fill(response.results.add(), outcome)
        return response

    async def Recall(self, request: producer_pb2.RecallRequest, context: _Context) -> producer_pb2.RecallResponse:
        """Recalls scheduled messages."""
        self._sending.limits.check_items(len(request.message_ids), "message_ids")
        items = [_message_id(text) for text in request.message_ids]
        may = CALLER.get().judge(Action.PUB, Kind.TOPIC)
        response = producer_pb2.RecallResponse()
        for own_id, outcome in zip(request.message_ids, await self._sending.recall(items, may), strict=True):
            result = response.results.add(message_id=own_id)
            if isinstance(outcome, BrokerError):
                result.error.CopyFrom(item_error(outcome))
            else:
                result.recalled_at.CopyFrom(times.timestamp(outcome))
        return response


def _fill(result: producer_pb2.SendResult, sent: Sent) -> None:
    messages.fill_position(result.position, sent.position)
    result.duplicate = sent.duplicate


def _message_id(text: str) -> tuple[bytes, int] | BrokerError:
    try:
        return parse_message_id(text)
    except InvalidArgument as error:
        return error
