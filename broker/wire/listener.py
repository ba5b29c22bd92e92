"""One address of a broker: a gRPC server with or without TLS, or with both on one port, its health, and its drain."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from broker.errors import ConfigurationError
from broker.wire import undecodable_headers
from broker.wire.health import HealthServicer
from broker.wire.interceptor import LARGEST_REQUEST, CallInterceptor
from broker.wire.port_sharing import Ports, SharedPort
from broker.wire.tls import CertificateFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen, and how.

    Attributes:
        text: host and port; port 0 takes a free one.
        setting: the name of the setting that has it.
        certificate, key, client_ca: files of TLS; empty: without it, and clients need no certificate.
        tls_optional: clients without TLS are served, too.
        shared: other processes listen there, too.
    """

    text: str
    setting: str
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    tls_optional: bool = False
    shared: bool = False

    @property
    def host(self) -> str:
        """The host."""
        return self.text.rpartition(":")[0]


class Listener:
    """Serves some services on an address.

    Attributes:
        port: the port, once it listens.
    """

    def __init__(self, address: Address, guard: CallInterceptor) -> None:
        """Takes the address, and what all calls go through; nothing listens yet."""
        self._address = address
        self._guard = guard
        self._server: grpc.aio.Server | None = None
        self._health: HealthServicer | None = None
        self._shared_port: SharedPort | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"{self._address.host}:{self.port}"

    async def listen(self, add: Callable[[grpc.aio.Server], Sequence[str]], *, reflects: bool) -> None:
        """Listens; the health service does not report SERVING yet.

        Args:
            add: adds services to a server, and returns their names.
            reflects: whether it tells what it serves, by reflection.

        Raises:
            ConfigurationError: the address or the certificate is not usable; the text has the remedy.
        """
        undecodable_headers.set_up()
        options = [
            *SERVER_OPTIONS,
            ("grpc.so_reuseport", int(self._address.shared)),
            ("grpc.max_concurrent_streams", self._guard.most_of_connection),
        ]
        if self._address.shared:
            options.append(("grpc.max_connection_age_ms", OLDEST_CONNECTION))
        self._server = server = grpc.aio.server(interceptors=(self._guard,), options=options)
        services = add(server)
        self._health = HealthServicer(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if reflects:
            own = (health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
            reflection.enable_server_reflection((*services, *own), server)
        try:
            front, port = self._bind(server)
            await server.start()
            self.port = port if front is None else front.start()
            self._shared_port = front
        except (RuntimeError, OSError) as error:
            raise _unusable(self._address) from error

    async def serve(self) -> None:
        """Sets the health service to SERVING."""
        if self._health is not None:
            await self._health.serve()

    async def tell_readiness(self, ready: bool) -> None:
        """Sets what the health service tells as `ready`."""
        if self._health is not None:
            await self._health.tell_readiness(ready)

    async def drain(self) -> None:
        """Sets it to NOT_SERVING, so that clients switch to other brokers, and ends its watches."""
        if self._health is not None:
            await self._health.drain()

    async def stop(self, grace: float) -> None:
        """Accepts nothing new, and ends the calls in flight within so many seconds."""
        if self._shared_port is not None:
            self._shared_port.close()
        if self._server is not None:
            await self._server.stop(grace)
        if self._shared_port is not None:
            await asyncio.to_thread(self._shared_port.stop)

    def _bind(self, server: grpc.aio.Server) -> tuple[SharedPort | None, int]:
        """The front, if there is one, and the port otherwise."""
        address = self._address
        if not address.certificate:
            return None, server.add_insecure_port(address.text)
        credentials = CertificateFiles(address.certificate, address.key, address.client_ca).credentials()
        if not address.tls_optional:
            return None, server.add_secure_port(address.text, credentials)
        ports = Ports(tls=server.add_secure_port(_BEHIND, credentials), plain=server.add_insecure_port(_BEHIND))
        host, _, port = address.text.rpartition(":")
        return SharedPort(host.strip("[]"), int(port), ports, shares_port=address.shared), 0


def _unusable(address: Address) -> ConfigurationError:
    """Why gRPC cannot listen on an address, which gRPC itself does not report."""
    host, _, port = address.text.rpartition(":")
    try:
        family, kind, protocol, _, found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            if address.shared:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(found)
    except socket.gaierror as error:
        return ConfigurationError(
            f"The address {address.text} cannot be used: no machine has the name {host} ({error.strerror}).",
            field=address.setting,
        )
    except OSError as error:
        return ConfigurationError.of_address(address.text, error, field=address.setting)
    if address.certificate:
        return ConfigurationError(
            f"TLS does not work with {address.certificate!r} and {address.key!r}: both must be PEM files, the "
            "key that of the certificate.",
            field="tls_certificate",
        )
    return ConfigurationError(f"The address {address.text} cannot be used: try another one.", field=address.setting)
