"""What a broker serves, and on which addresses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.api.admin_servicer import AdminServicer
from broker.api.consumer_servicer import ConsumerServicer
from broker.api.producer_servicer import ProducerServicer
from broker.api.query_servicer import QueryServicer
from broker.api.sink_servicer import SinkServicer
from broker.api.transaction_servicer import TransactionServicer
from broker.wire.listener import Address, Listener
from halfmq.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    consumer_pb2,
    consumer_pb2_grpc,
    producer_pb2,
    producer_pb2_grpc,
    query_pb2,
    query_pb2_grpc,
    sink_pb2,
    sink_pb2_grpc,
    transaction_pb2,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc

    from broker.assembly import Parts
    from broker.cells.consumers import ConsumerRouter
    from broker.config import BrokerConfig
    from broker.rocketmq.gateway import Gateway
    from broker.services.producing.check_sessions import CheckSessions
    from broker.services.producing.checks import Answers
    from broker.wire.interceptor import CallInterceptor

SERVICES = (
    transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"].full_name,
    producer_pb2.DESCRIPTOR.services_by_name["ProducerService"].full_name,
    consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name,
    sink_pb2.DESCRIPTOR.services_by_name["SinkService"].full_name,
)
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


@dataclass(frozen=True, slots=True)
class Servicers:
    """What serves the services: those of one database, or what routes calls to those of several."""

    transactions: transaction_pb2_grpc.TransactionServiceServicer
    producers: producer_pb2_grpc.ProducerServiceServicer
    sinks: sink_pb2_grpc.SinkServiceServicer
    consumers: ConsumerServicer | ConsumerRouter
    queries: query_pb2_grpc.QueryServiceServicer
    operators: admin_pb2_grpc.AdminServiceServicer


def servicers_of(
    parts: Parts, config: BrokerConfig, guard: CallInterceptor, answers: Answers | None = None
) -> Servicers:
    """Builds what serves one database's parts; `answers` takes those to checks, where it is not the parts' own."""
    return Servicers(
        TransactionServicer(
            parts.transactions,
            parts.operations,
            parts.sessions,
            parts.catalog,
            answers or parts.answers,
            parts.connections,
            config.name,
        ),
        ProducerServicer(parts.sending, parts.forwarding),
        SinkServicer(parts.epochs),
        ConsumerServicer(
            parts.delivery,
            parts.receipts,
            parts.reader,
            parts.groups,
            parts.topics,
            parts.wakeups,
            parts.connections,
            parts.store.clock,
            config.name,
            guard.responses,
        ),
        QueryServicer(parts.queries),
        AdminServicer(
            parts.topics,
            parts.groups,
            parts.dead_letters,
            parts.operations,
            parts.cluster,
            parts.access,
            parts.store.clock,
        ),
    )


class Server:
    """Serves a broker's parts: on one address, or those of operators on another one."""

    def __init__(
        self,
        config: BrokerConfig,
        servicers: Servicers,
        sessions: CheckSessions,
        guard: CallInterceptor,
        gateway: Gateway | None,
        *,
        shares_port: bool = False,
    ) -> None:
        """Takes what to serve, and whether other processes listen on the addresses, too; nothing listens yet."""
        self._config = config
        self._gateway = gateway
        self._servicers = servicers
        self._sessions = sessions
        self._main = Listener(_address(config, "listen", shared=shares_port), guard)
        self._admin = None
        if config.admin_listen:
            self._admin = Listener(_address(config, "admin_listen", shared=shares_port), guard)
        self._listeners = [self._main] if self._admin is None else [self._main, self._admin]

    @property
    def endpoint(self) -> str:
        """The address for clients, once it listens."""
        return self._main.endpoint

    @property
    def admin_endpoint(self) -> str:
        """The address for operators; empty if it is the one for clients."""
        return self._admin.endpoint if self._admin is not None else ""

    def servicers(self) -> dict[str, Any]:
        """What serves operators' calls, by the names of the services; for the console."""
        return {
            "AdminService": self._servicers.operators,
            "QueryService": self._servicers.queries,
            "TransactionService": self._servicers.transactions,
        }

    async def listen(self) -> None:
        """Listens; the health services do not report SERVING yet.

        Raises:
            ConfigurationError: an address or the certificate is not usable; the text has the remedy.
        """
        try:
            await self._main.listen(self._add_services, reflects=self._admin is None)
            if self._admin is not None:
                await self._admin.listen(self._add_admin, reflects=True)
        except BaseException:
            await self._stop(0)
            raise

    async def serve(self) -> None:
        """Sets the health services to SERVING."""
        for listener in self._listeners:
            await listener.serve()

    async def tell_readiness(self, ready: bool) -> None:
        """Sets what the health services tell as `ready`."""
        for listener in self._listeners:
            await listener.tell_readiness(ready)

    async def drain(self) -> None:
        """Ends all streams and waits, so that clients switch to other brokers."""
        for listener in self._listeners:
            await listener.drain()
        if self._gateway is not None:
            self._gateway.drain()
        self._sessions.close_all()
        self._servicers.consumers.drain()

    async def stop(self) -> None:
        """Ends the calls in flight, within the drain time of the settings."""
        await self._stop(self._config.drain)

    async def _stop(self, grace: float) -> None:
        await asyncio.gather(*[listener.stop(grace) for listener in self._listeners])

    def _add_services(self, server: grpc.aio.Server) -> Sequence[str]:
        own = self._servicers
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(own.transactions, server)
        producer_pb2_grpc.add_ProducerServiceServicer_to_server(own.producers, server)
        sink_pb2_grpc.add_SinkServiceServicer_to_server(own.sinks, server)
        consumer_pb2_grpc.add_ConsumerServiceServicer_to_server(own.consumers, server)
        query_pb2_grpc.add_QueryServiceServicer_to_server(own.queries, server)
        services = [service for service in SERVICES if service != ADMIN or self._admin is None]
        if self._admin is None:
            self._add_admin(server)
        if self._gateway is None:
            return services
        self._gateway.serve_on(server)
        return [*services, self._gateway.service]

    def _add_admin(self, server: grpc.aio.Server) -> Sequence[str]:
        admin_pb2_grpc.add_AdminServiceServicer_to_server(self._servicers.operators, server)
        return [ADMIN]


def _address(config: BrokerConfig, setting: str, *, shared: bool) -> Address:
    return Address(
        getattr(config, setting),
        setting,
        config.tls_certificate,
        config.tls_key,
        config.tls_client_ca,
        config.tls_optional,
        shared,
    )
