"""Where topics are: on every broker, for all of them share the database.

A client is told of the brokers whose addresses it was given itself, or of those that the operator announces. Each has
all queues of a topic, so whichever a client asks serves it; where one is gone, the client goes on with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.limits import check_group_name, check_topic_name
from broker.errors import ConfigurationError
from broker.rocketmq.codes import OK, BadRequest
from broker.rocketmq.messages import Type
from broker.rocketmq.names import name_of
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import Topic
    from broker.rocketmq.calls import Caller
    from broker.services.catalog import Catalog

_Scheme, _Permission = definition_pb2.AddressScheme, definition_pb2.Permission
ANY_QUEUE = -1


def endpoints_of(text: str) -> Any:
    """One address, such as `mq.example.com:8085`, as clients are told of it.

    Raises:
        ConfigurationError: it is none.
    """
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"{text.strip()!r} is no address; write host:port, several with commas between them.",
            field="rocketmq_endpoints",
        )
    scheme = _Scheme.IPv4 if _is_ipv4(host) else _Scheme.IPv6 if ":" in host else _Scheme.DOMAIN_NAME
    endpoints = definition_pb2.Endpoints(scheme=scheme)
    endpoints.addresses.add(host=host, port=int(port))
    return endpoints


def _is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts)


class Routes:
    """The calls that ask for brokers and queues."""

    def __init__(self, catalog: Catalog, announced: Sequence[Any]) -> None:
        """Takes the names, and the brokers that are announced, by endpoints; none: those that the client named."""
        self._catalog = catalog
        self._announced = announced

    async def query_route(self, request: Any, caller: Caller) -> Any:
        """Tells the queues of a topic, on each broker."""
        topic = await self._topic(request, caller)
        response = service_pb2.QueryRouteResponse(status=OK)
        for number in range(_queues(topic)):
            for broker in self._brokers(request):
                queue = response.message_queues.add(id=number, permission=_Permission.READ_WRITE, broker=broker)
                queue.topic.CopyFrom(request.topic)
                queue.accept_message_types.extend(_types(topic))
        return response

    async def query_assignment(self, request: Any, caller: Caller) -> Any:
        """Tells what a push consumer is to poll: each broker, for it hands out the messages of all queues."""
        topic = await self._topic(request, caller)
        name = name_of(request.group, caller.namespace)
        check_group_name(name, "consumer_group")
        ordered = (await self._catalog.group(name)).settings.fifo
        response = service_pb2.QueryAssignmentResponse(status=OK)
        for number in range(_queues(topic)) if ordered else (ANY_QUEUE,):
            for broker in self._brokers(request):
                queue = response.assignments.add().message_queue
                queue.topic.CopyFrom(request.topic)
                queue.id, queue.permission = number, _Permission.READ_WRITE
                queue.broker.CopyFrom(broker)
                queue.accept_message_types.extend(_types(topic))
        return response

    async def _topic(self, request: Any, caller: Caller) -> Topic:
        name = name_of(request.topic, caller.namespace)
        check_topic_name(name)
        return await self._catalog.topic(name)

    def _brokers(self, request: Any) -> list[Any]:
        """The brokers, all of them masters; each is named by its address."""
        announced = self._announced
        if not announced:
            # Exactly as the client wrote them: another form of an address would be another broker to it.
            announced = [
                definition_pb2.Endpoints(scheme=request.endpoints.scheme, addresses=[address])
                for address in request.endpoints.addresses
            ]
        if not announced:
            raise BadRequest(
                "The request names no endpoints; set rocketmq_endpoints, the addresses to announce.",
                Code.ILLEGAL_ACCESS_POINT,
                "endpoints",
            )
        return [
            definition_pb2.Broker(name=f"{each.addresses[0].host}:{each.addresses[0].port}", id=0, endpoints=each)
            for each in announced
        ]


def _queues(topic: Topic) -> int:
    return len(topic.queue_ids)


def _types(topic: Topic) -> list[int]:
    types = [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]
    return [*types, Type.PRIORITY] if topic.priority_levels > 1 else types
