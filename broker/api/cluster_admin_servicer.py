"""AdminService: the part for brokers and connected clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.domain.access import Action, Kind
from broker.errors import InvalidArgument
from broker.ports.connections import ClientKind
from broker.services.operating.cluster import ClientSearch
from broker.services.rights import CALLER
from broker.wire.times import fill_duration, timestamp
from halfmq.v1 import admin_pb2, admin_pb2_grpc

if TYPE_CHECKING:
    import grpc

    from broker.ports.connections import ConnectedClient
    from broker.services.operating.cluster import ClusterOperations

    _Context = grpc.aio.ServicerContext[object, object]


class ClusterAdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Administration of brokers and clients."""

    _cluster: ClusterOperations

    async def GetOverview(
        self, request: admin_pb2.GetOverviewRequest, context: _Context
    ) -> admin_pb2.GetOverviewResponse:
        """Returns what there is in all."""
        found = await self._cluster.overview(CALLER.get().judge(Action.LIST, Kind.GROUP))
        response = admin_pb2.GetOverviewResponse(
            time=timestamp(found.time),
            database=found.database,
            schema_version=found.schema_version,
            topics=found.topics,
            consumer_groups=found.consumer_groups,
            scheduled=found.scheduled,
            released=found.released,
            stored=found.stored,
            stored_bytes=found.stored_bytes,
            dead_letters=found.dead_letters,
        )
        for each in found.pending:
            response.pending.add(
                producer_group=each.producer_group,
                prepared=each.pending,
                parked=each.parked,
                oldest_prepared_at=None if each.since is None else timestamp(each.since),
                overdue_since=None if each.due_since is None else timestamp(each.due_since),
            )
        for bucket in found.ages:
            added = response.ages.add(prepared=bucket.prepared, parked=bucket.parked)
            if bucket.up_to is not None:
                fill_duration(added.up_to, bucket.up_to)
        return response

    async def ListBrokers(
        self, request: admin_pb2.ListBrokersRequest, context: _Context
    ) -> admin_pb2.ListBrokersResponse:
        """Lists the brokers on this database."""
        response = admin_pb2.ListBrokersResponse()
        for status, alive in await self._cluster.brokers():
            response.brokers.add(
                broker_id=status.broker_id,
                host=status.host,
                pid=status.pid,
                endpoint=status.endpoint,
                version=status.version,
                started_at=timestamp(status.started_at),
                seen_at=timestamp(status.seen_at),
                alive=alive,
                producers=status.producers,
                consumers=status.consumers,
            )
        return response

    async def ListClients(
        self, request: admin_pb2.ListClientsRequest, context: _Context
    ) -> admin_pb2.ListClientsResponse:
        """Lists clients with an open stream to any broker."""
        search = ClientSearch(_kind(request.kind), request.group, request.broker_id)
        may = CALLER.get().judge(Action.LIST, Kind.GROUP)
        found, following = await self._cluster.clients(search, request.page_size, request.page_token, may)
        return admin_pb2.ListClientsResponse(
            clients=[_client(broker_id, client) for broker_id, client in found], next_page_token=following
        )


def _kind(given: int) -> ClientKind | None:
    try:
        return ClientKind(given) if given else None
    except ValueError:
        raise InvalidArgument("Say CLIENT_KIND_PRODUCER or CLIENT_KIND_CONSUMER.", field="kind") from None


def _client(broker_id: str, client: ConnectedClient) -> admin_pb2.ConnectedClient:
    return admin_pb2.ConnectedClient(
        kind=cast("admin_pb2.ClientKind.ValueType", int(client.kind)),
        client_id=client.client_id,
        address=client.address,
        library=client.library,
        principal=client.principal,
        groups=client.groups,
        topics=client.topics,
        broker_id=broker_id,
        connected_at=timestamp(client.connected_at),
        credits=client.credits,
        byte_credits=client.byte_credits,
        delivered=client.delivered,
        held=client.held,
    )
