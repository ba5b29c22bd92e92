"""AdminService: the part for brokers and connected clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.converters.cluster import broker, connected_client, overview
from broker.domain.access import Action, Kind
from broker.errors import InvalidArgument
from broker.ports.connections import ClientKind
from broker.services.operating.cluster import ClientSearch
from broker.services.rights import CALLER
from broker.wire.times import micros, timestamp
from halfmq.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.domain.clock import Clock
    from broker.services.operating.cluster import ClusterOperations

    _Context = grpc.aio.ServicerContext[object, object]


class ClusterAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of brokers and clients."""

    _cluster: ClusterOperations
    _clock: Clock

    async def GetOverview(
        self, request: admin_pb2.GetOverviewRequest, context: _Context
    ) -> admin_pb2.GetOverviewResponse:
        """Returns what there is in all."""
        wait = micros(request.wait, "wait") if request.HasField("wait") else None
        found = await self._cluster.overview(CALLER.get().judge(Action.LIST, Kind.GROUP), wait)
        return admin_pb2.GetOverviewResponse() if found is None else overview(found)

    async def ListBrokers(
        self, request: admin_pb2.ListBrokersRequest, context: _Context
    ) -> admin_pb2.ListBrokersResponse:
        """Lists the brokers on this database."""
        found = await self._cluster.brokers()
        return admin_pb2.ListBrokersResponse(
            brokers=[broker(status, alive, self._cluster.health_of(status.broker_id)) for status, alive in found],
            time=timestamp(self._clock.now()),
        )

    async def ListClients(
        self, request: admin_pb2.ListClientsRequest, context: _Context
    ) -> admin_pb2.ListClientsResponse:
        """Lists clients with an open stream to any broker."""
        search = ClientSearch(_kind(request.kind), request.group, request.broker_id)
        may = CALLER.get().judge(Action.LIST, Kind.GROUP)
        found, following = await self._cluster.clients(search, request.page_size, request.page_token, may)
        return admin_pb2.ListClientsResponse(
            clients=[connected_client(broker_id, client) for broker_id, client in found], next_page_token=following
        )


def _kind(given: int) -> ClientKind | None:
    try:
        return ClientKind(given) if given else None
    except ValueError:
        raise InvalidArgument("Say CLIENT_KIND_PRODUCER or CLIENT_KIND_CONSUMER.", field="kind") from None
