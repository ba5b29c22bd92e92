"""The gRPC server of a broker: services, address and TLS."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from broker.api.admin_servicer import AdminServicer
from broker.api.consumer_servicer import ConsumerServicer
from broker.api.producer_servicer import ProducerServicer
from broker.api.query_servicer import QueryServicer
from broker.api.sink_servicer import SinkServicer
from broker.api.transaction_servicer import TransactionServicer
from broker.errors import ConfigurationError
from broker.wire import undecodable_headers
from broker.wire.health import HealthServicer
from broker.wire.interceptor import LARGEST_REQUEST, CallInterceptor
from broker.wire.port_sharing import Ports, SharedPort
from broker.wire.tls import CertificateFiles
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
    from broker.assembly import Parts
    from broker.config import BrokerConfig
    from broker.rocketmq.gateway import Gateway

MOST_UNSEEN_CALLS = 100_000

# Unread streams must not grow the broker: no bandwidth probing, so flow-control windows keep their size. Requests are
# decoded in CallInterceptor, after the budget was checked. Of calls that arrive faster than they are accepted, gRPC
# would cancel some at random beyond a thousand; they are refused here, with a reason and a delay.
SERVER_OPTIONS = [
    ("grpc.per_message_decompression", 0),
    ("grpc.server.max_pending_requests", MOST_UNSEEN_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MOST_UNSEEN_CALLS),
    ("grpc.max_receive_message_length", LARGEST_REQUEST),
    ("grpc.max_send_message_length", LARGEST_REQUEST),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

OLDEST_CONNECTION = 300_000
"""Milliseconds after which the client of a broker that shares its port connects anew, perhaps to another one of them:
a broker that was replaced would get no clients. Streams and calls that are under way go on where they are."""

_BEHIND = "127.0.0.1:0"
"""The server's addresses behind a front."""

SERVICES = (
    transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"].full_name,
    producer_pb2.DESCRIPTOR.services_by_name["ProducerService"].full_name,
    consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name,
    sink_pb2.DESCRIPTOR.services_by_name["SinkService"].full_name,
)


class Server:
    """Serves a broker's parts.

    Attributes:
        port: the port, once it listens.
    """

    def __init__(
        self,
        config: BrokerConfig,
        parts: Parts,
        guard: CallInterceptor,
        gateway: Gateway | None,
        *,
        shares_port: bool = False,
    ) -> None:
        """Takes the parts to serve, and whether other processes listen on the port, too; nothing listens yet."""
        self._config = config
        self._shares_port = shares_port
        self._parts = parts
        self._guard = guard
        self._gateway = gateway
        self._consumers = ConsumerServicer(
            parts.delivery,
            parts.receipts,
            parts.reader,
            parts.groups,
            parts.topics,
            parts.wakeups,
            parts.store.clock,
            config.name,
            guard.responses,
        )
        self._shared_port: SharedPort | None = None
        self.port = 0

    async def listen(self) -> None:
        """Listens; the health service does not report SERVING yet.

        Raises:
            ConfigurationError: the address or the certificate is not usable; the text has the remedy.
        """
        undecodable_headers.set_up()
        options = [
            *SERVER_OPTIONS,
            ("grpc.so_reuseport", int(self._shares_port)),
            ("grpc.max_concurrent_streams", self._guard.most_of_connection),
        ]
        if self._shares_port:
            options.append(("grpc.max_connection_age_ms", OLDEST_CONNECTION))
        self._server = grpc.aio.server(interceptors=(self._guard,), options=options)
        services = self._add_services()
        self._health = HealthServicer(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )
        try:
            self.port = self._bind()
            await self._server.start()
            if self._shared_port is not None:
                self.port = self._shared_port.start()
        except (RuntimeError, OSError) as error:
            raise _unusable(self._config, shares_port=self._shares_port) from error

    async def serve(self) -> None:
        """Sets the health service to SERVING."""
        await self._health.serve()

    async def drain(self) -> None:
        """Ends all streams and waits, so that clients switch to other brokers."""
        await self._health.drain()
        if self._gateway is not None:
            self._gateway.drain()
        self._parts.sessions.close_all()
        self._consumers.drain()

    async def stop(self) -> None:
        """Ends the calls in flight, within the drain time of the settings."""
        if self._shared_port is not None:
            self._shared_port.close()
        await self._server.stop(self._config.drain)
        if self._shared_port is not None:
            await asyncio.to_thread(self._shared_port.stop)

    def _add_services(self) -> list[str]:
        parts, server = self._parts, self._server
        transactions = TransactionServicer(
            parts.transactions, parts.operations, parts.sessions, parts.catalog, parts.answers, self._config.name
        )
        admin = AdminServicer(
            parts.topics, parts.groups, parts.dead_letters, parts.operations, parts.access, parts.store.clock
        )
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(transactions, server)
        producer_pb2_grpc.add_ProducerServiceServicer_to_server(
            ProducerServicer(parts.sending, parts.forwarding), server
        )
        sink_pb2_grpc.add_SinkServiceServicer_to_server(SinkServicer(parts.epochs), server)
        consumer_pb2_grpc.add_ConsumerServiceServicer_to_server(self._consumers, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        query_pb2_grpc.add_QueryServiceServicer_to_server(QueryServicer(parts.queries), server)
        if self._gateway is None:
            return list(SERVICES)
        self._gateway.serve_on(server)
        return [*SERVICES, self._gateway.service]

    def _bind(self) -> int:
        config = self._config
        if not config.tls_certificate:
            return self._server.add_insecure_port(config.listen)
        credentials = CertificateFiles(config.tls_certificate, config.tls_key, config.tls_client_ca).credentials()
        if not config.tls_optional:
            return self._server.add_secure_port(config.listen, credentials)
        ports = Ports(
            tls=self._server.add_secure_port(_BEHIND, credentials), plain=self._server.add_insecure_port(_BEHIND)
        )
        host, _, port = config.listen.rpartition(":")
        self._shared_port = SharedPort(host.strip("[]"), int(port), ports, shares_port=self._shares_port)
        return int(port)


def _unusable(config: BrokerConfig, *, shares_port: bool) -> ConfigurationError:
    """Why gRPC cannot listen on its address, which gRPC itself does not report."""
    host, _, port = config.listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if shares_port:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(address)
    except socket.gaierror as error:
        return ConfigurationError(
            f"The address {config.listen} cannot be used: no machine has the name {host} ({error.strerror}).",
            field="listen",
        )
    except OSError as error:
        return ConfigurationError(
            f"The address {config.listen} cannot be used ({error.strerror}): is another process there, is it this "
            "machine's?",
            field="listen",
        )
    if config.tls_certificate:
        return ConfigurationError(
            f"TLS does not work with {config.tls_certificate!r} and {config.tls_key!r}: both must be PEM files, the "
            "key that of the certificate.",
            field="tls_certificate",
        )
    return ConfigurationError(f"The address {config.listen} cannot be used: try another one.", field="listen")
