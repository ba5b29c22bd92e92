"""Routes of topics: every broker serves all topics, because they share the database.

The route contains the addresses that the client itself used, or those that the operator announces. Each serves all
queues of a topic. As in RocketMQ's own proxies, they are announced as one broker with many addresses: a client uses one
of them, and switches to the next one if that is unreachable. As separate brokers each would be required: Java's and
Go's clients start only when all of them answer, and keep sending a message group to an unreachable one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

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
# Languages in the headers of calls: Node's client cannot use endpoints with several addresses, and Python's clients all
# start with the same one. Both tolerate an unreachable broker.
_ONE_ADDRESS_EACH = {"HTTP", "NODE_JS", "PYTHON"}


def endpoints_of(text: str) -> list[Any]:
    """The endpoints that clients get for addresses such as `10.0.0.1:8085,10.0.0.2:8085`.

    All numeric addresses of a family form one broker. Clients refuse several host names together, so each is a separate
    broker.

    Raises:
        ConfigurationError: one is malformed.
    """
    found: dict[Any, Any] = {}
    for each in text.split(","):
        if each.strip():
            scheme, host, port = _address_of(each)
            alone = each.strip() if scheme == _Scheme.DOMAIN_NAME else ""
            at = found.setdefault((scheme, alone), definition_pb2.Endpoints(scheme=scheme))
            at.addresses.add(host=host, port=port)
    return list(found.values())


def _address_of(text: str) -> tuple[Any, str, int]:
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"{text.strip()!r} is no address; write host:port, several with commas between them.",
            field="rocketmq_endpoints",
        )
    scheme = _Scheme.IPv4 if _is_ipv4(host) else _Scheme.IPv6 if ":" in host else _Scheme.DOMAIN_NAME
    return scheme, host, int(port)


def _is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(part.isascii() and part.isdigit() for part in parts)


class Routes:
    """The calls for brokers and queues."""

    def __init__(self, catalog: Catalog, announced: Sequence[Any]) -> None:
        """Takes the catalog, and the endpoints of announced brokers; none: those that the client used."""
        self._catalog = catalog
        self._announced = announced

    async def query_route(self, request: Any, caller: Caller) -> Any:
        """Returns the queues of a topic, on each broker."""
        topic = await self._topic(request, caller)
        response = service_pb2.QueryRouteResponse(status=OK)
        for number in range(_queues(topic)):
            for broker in self._brokers(request, caller):
                queue = response.message_queues.add(id=number, permission=_Permission.READ_WRITE, broker=broker)
                queue.topic.CopyFrom(request.topic)
                queue.accept_message_types.extend(_types(topic))
        return response

    async def query_assignment(self, request: Any, caller: Caller) -> Any:
        """Returns what a push consumer is to poll: each broker, because it delivers the messages of all queues."""
        topic = await self._topic(request, caller)
        name = name_of(request.group, caller.namespace)
        check_group_name(name, "consumer_group")
        ordered = (await self._catalog.group(name)).settings.fifo
        response = service_pb2.QueryAssignmentResponse(status=OK)
        for number in range(_queues(topic)) if ordered else (ANY_QUEUE,):
            for broker in self._brokers(request, caller):
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

    def _brokers(self, request: Any, caller: Caller) -> list[Any]:
        """The brokers, all of them masters; each is identified by its first address."""
        # As the client wrote them: another form of an address would be another broker for it.
        announced = self._announced or ([request.endpoints] if request.endpoints.addresses else [])
        apart = caller.language in _ONE_ADDRESS_EACH
        told = [each for endpoints in announced for each in (_apart(endpoints) if apart else [endpoints])]
        if not told:
            raise BadRequest(
                "The request names no endpoints; set rocketmq_endpoints, the addresses to announce.",
                Code.ILLEGAL_ACCESS_POINT,
                "endpoints",
            )
        turn = 0 if announced is not self._announced else crc32(caller.client_id.encode())
        return [
            definition_pb2.Broker(
                name=f"{each.addresses[0].host}:{each.addresses[0].port}", id=0, endpoints=_from(turn, each)
            )
            for each in told
        ]


def _apart(endpoints: Any) -> list[Any]:
    """Separate endpoints of each address."""
    return [definition_pb2.Endpoints(scheme=endpoints.scheme, addresses=[each]) for each in endpoints.addresses]


def _from(turn: int, endpoints: Any) -> Any:
    """The same addresses, rotated per client: a client sends all calls to the first one that answers."""
    first = turn % len(endpoints.addresses)
    addresses = [*endpoints.addresses[first:], *endpoints.addresses[:first]]
    return definition_pb2.Endpoints(scheme=endpoints.scheme, addresses=addresses)


def _queues(topic: Topic) -> int:
    return len(topic.queue_ids)


def _types(topic: Topic) -> list[int]:
    types = [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]
    return [*types, Type.PRIORITY] if topic.priority_levels > 1 else types
