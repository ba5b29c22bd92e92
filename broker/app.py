"""The broker as a whole: builds the parts, starts them, drains and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from broker.api.admin_servicer import AdminServicer
from broker.api.consumer_servicer import ConsumerServicer
from broker.api.front import Front, Ports
from broker.api.health_servicer import HealthServicer
from broker.api.interceptor import LARGEST_REQUEST, CallInterceptor
from broker.api.query_servicer import QueryServicer
from broker.api.sink_servicer import SinkServicer
from broker.api.tls import CertificateFiles
from broker.api.transaction_servicer import ProducerServicer, TransactionServicer
from broker.config import BrokerConfig, seen_by_all
from broker.errors import BrokerError, ConfigurationError
from broker.maintenance.delay_scheduler import DelayScheduler
from broker.maintenance.retention import RetentionSweeper
from broker.maintenance.transaction_checker import TransactionChecker
from broker.maintenance.watchers import ClockSynchroniser, HeadWatcher, LeaseWatcher
from broker.services.catalog import Catalog, CatalogConfig
from broker.services.check_sessions import CheckSessions
from broker.services.checks import CheckAnswers
from broker.services.delivery import DeliveryConfig, DeliveryService
from broker.services.groups import GroupService
from broker.services.queries import MessageQueries
from broker.services.sinks import SinkService
from broker.services.transactions import TransactionService
from broker.services.wakeups import Wakeups
from broker.storage.adapters.store import Store
from broker.storage.engine.durability import open_database
from broker.storage.engine.group_commit import LaneConfig
from broker.storage.migrations import current, migrate, newest
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
    from types import TracebackType

    from broker.maintenance.loop import Loop
    from broker.rocketmq.gateway import Gateway

logger = logging.getLogger("halfmq.broker")

CLOSING = 2.0
"""Seconds after the drain that giving the database's connections back may take."""
MOST_UNSEEN_CALLS = 100_000

# Unread streams must not grow the broker: no bandwidth probing, so flow-control windows keep their size. Requests are
# unpacked in CallInterceptor, after it was looked whether there is room. Of calls that come faster than they are looked
# at, gRPC would cancel some at random, from the thousandth on; they are refused here, with the reason and a delay.
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
    ("grpc.so_reuseport", 0),
]

_BEHIND = "127.0.0.1:0"
"""Where the server listens behind a front."""

SERVICES = (
    transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"].full_name,
    producer_pb2.DESCRIPTOR.services_by_name["ProducerService"].full_name,
    consumer_pb2.DESCRIPTOR.services_by_name["ConsumerService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name,
    sink_pb2.DESCRIPTOR.services_by_name["SinkService"].full_name,
)


class Broker:
    """One broker process: `await start()`, then `await stop()`."""

    def __init__(self, config: BrokerConfig) -> None:
        """Takes the settings; nothing is opened yet."""
        self.config = config
        self.port = 0
        self._front: Front | None = None

    @property
    def endpoint(self) -> str:
        """Where clients reach the broker."""
        return f"{self.config.listen.rpartition(':')[0]}:{self.port}"

    async def start(self) -> None:
        """Opens the database, and serves.

        Raises:
            ConfigurationError: the database, its settings, or the address is not usable; says what to change.
        """
        await asyncio.to_thread(self._open_database)
        self._build()
        await self.store.start()
        await self._listen()
        for setting in ("tls_key", "rocketmq_keys"):
            warn_of_readers(setting, getattr(self.config, setting))
        for loop in self._loops:
            loop.start()
        await self._health.serve()
        logger.info("broker %s serves on %s, database %s", self.config.name, self.endpoint, self._database.shown_url)

    async def stop(self) -> bool:
        """Drains: clients are sent elsewhere, calls under way end, everything acknowledged is durable.

        Returns:
            Whether all ended. If not, threads wait for a database that does not answer, for nobody any more.
        """
        logger.info("broker %s drains", self.config.name)
        await self._health.drain()
        if self._gateway is not None:
            self._gateway.drain()
        self._sessions.close_all()
        self._consumers.drain()
        for loop in self._loops:
            await loop.stop()
        if self._front is not None:
            self._front.close()
        await self._server.stop(self.config.drain)
        if self._front is not None:
            await asyncio.to_thread(self._front.stop)
        try:
            async with asyncio.timeout(CLOSING):
                await self.store.close()
        except TimeoutError:
            logger.warning(
                "broker %s ends, though the database has not answered: what was not acknowledged may have taken effect",
                self.config.name,
            )
            return False
        self._database.close()
        logger.info("broker %s stopped", self.config.name)
        return True

    def _open_database(self) -> None:
        config = self.config
        self._database, warnings = open_database(
            config.database,
            answer_timeout=config.answer_timeout,
            allow_unsafe=config.allow_unsafe_database,
            largest_body=config.max_body_bytes,
            table_prefix=config.table_prefix,
        )
        for warning in warnings:
            logger.warning("database setting: %s", warning)
        if config.migrate:
            migrate(self._database)
        elif current(self._database) != newest():
            raise ConfigurationError(
                f"The database's tables are at version {current(self._database)}, this broker needs {newest()}: "
                "run `halfmq migrate`.",
                field="database",
            )

    def _build(self) -> None:
        config = self.config
        policy = config.check_policy()
        self.store = Store(
            self._database,
            broker_id=config.name,
            policy=policy,
            lanes=LaneConfig(patience=config.patience),
            keep_history=config.history_hours > 0,
        )
        self._sessions = CheckSessions()
        self._wakeups = Wakeups()
        catalog_config = CatalogConfig(
            create_topics=config.auto_create,
            create_groups=config.creates_groups,
            queue_count=config.queue_count,
            retention=config.retention,
        )
        self._catalog = Catalog(self.store, catalog_config)
        scheduler = DelayScheduler(self.store, self._wakeups, self.store.clock)
        self._transactions = TransactionService(
            self.store,
            self._catalog,
            self._wakeups,
            clock=self.store.clock,
            limits=config.limits(),
            policy=policy,
            on_scheduled=scheduler.expect,
        )
        self._answers = CheckAnswers(self.store, self._transactions)
        delivery_config = replace(DeliveryConfig(), lease_time=int(config.lease * 1e6))
        self._delivery = DeliveryService(self.store, self._catalog, self._wakeups, delivery_config)
        self._groups = GroupService(self.store, self._catalog, self._wakeups)
        self._consumers = ConsumerServicer(self._delivery, self._groups, self._catalog, self.store.clock, config.name)
        self._sinks = SinkService(self.store, self._transactions, self._catalog, self._wakeups)
        self._queries = MessageQueries(self.store, self._catalog)
        self._loops: list[Loop] = [
            TransactionChecker(self.store, self._sessions, policy, self.store.clock),
            HeadWatcher(self.store, self._wakeups),
            LeaseWatcher(self.store, self._wakeups),
            ClockSynchroniser(self.store),
            scheduler,
            RetentionSweeper(
                self.store,
                keep_ops=config.retention,
                keep_events=int(config.history_hours * 3600e6),
                keep_leftovers=int(config.sink_hours * 3600e6),
            ),
        ]
        self._guard = CallInterceptor(
            max_calls=config.max_calls, max_streams=config.max_streams, max_request_bytes=config.max_request_bytes
        )
        self._gateway = self._make_gateway() if config.rocketmq else None
        if self._gateway is not None:
            self._loops.append(self._gateway.renewals)

    def _make_gateway(self) -> Gateway:
        from broker.rocketmq.gateway import Gateway  # noqa: PLC0415 - of an extra that a broker can do without

        return Gateway(
            self.store,
            self._catalog,
            self._transactions,
            self._delivery,
            self._groups,
            self._sessions,
            self._answers,
            self._guard,
            host=self.config.name,
            endpoints=self.config.rocketmq_endpoints,
            keys=self.config.rocketmq_keys,
            signature_window=self.config.rocketmq_signature_window,
            shortest_invisible=int(self.config.rocketmq_min_invisible * 1e6),
        )

    async def _listen(self) -> None:
        config = self.config
        self._server = grpc.aio.server(interceptors=(self._guard,), options=SERVER_OPTIONS)
        transaction_pb2_grpc.add_TransactionServiceServicer_to_server(
            TransactionServicer(self._transactions, self._sessions, self._catalog, self._answers, config.name),
            self._server,
        )
        producer_pb2_grpc.add_ProducerServiceServicer_to_server(ProducerServicer(self._transactions), self._server)
        sink_pb2_grpc.add_SinkServiceServicer_to_server(SinkServicer(self._sinks), self._server)
        consumer_pb2_grpc.add_ConsumerServiceServicer_to_server(self._consumers, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(self._catalog, self._groups, self._transactions, self.store.clock), self._server
        )
        query_pb2_grpc.add_QueryServiceServicer_to_server(QueryServicer(self._queries), self._server)
        services = list(SERVICES)
        if self._gateway is not None:
            self._gateway.serve_on(self._server)
            services.append(self._gateway.service)
        self._health = HealthServicer(services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )
        try:
            self.port = self._bind()
            await self._server.start()
            if self._front is not None:
                self.port = self._front.start()
        except (RuntimeError, OSError) as error:
            raise _unusable(config) from error

    def _bind(self) -> int:
        config = self.config
        if not config.tls_certificate:
            return self._server.add_insecure_port(config.listen)
        credentials = CertificateFiles(config.tls_certificate, config.tls_key, config.tls_client_ca).credentials()
        if not config.tls_optional:
            return self._server.add_secure_port(config.listen, credentials)
        ports = Ports(
            tls=self._server.add_secure_port(_BEHIND, credentials), plain=self._server.add_insecure_port(_BEHIND)
        )
        host, _, port = config.listen.rpartition(":")
        self._front = Front(host.strip("[]"), int(port), ports)
        return int(port)


def warn_of_readers(setting: str, file: str) -> None:
    """Says so in the log if every user of this machine can read a file that holds a secret.

    It is no error: files that a container is given often have these rights, where nobody else can reach them.
    """
    if file and seen_by_all(file):
        logger.warning("%s: every user of this machine can read %r, which holds a secret: chmod o= it", setting, file)


def _unusable(config: BrokerConfig) -> ConfigurationError:
    """Why gRPC does not listen as it was told to, which it does not say itself."""
    host, _, port = config.listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
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


class EmbeddedBroker:
    """A broker inside this process, on embedded storage, for tests and small tools.

    A context manager; it runs on a thread of its own, so synchronous and asyncio code can both use it.
    """

    def __init__(self, data_dir: Path | None = None, *, auto_create: bool = True, **settings: Any) -> None:
        """Takes a folder for the data (a temporary one when not given) and settings of BrokerConfig."""
        self._temporary = None if data_dir else tempfile.TemporaryDirectory(prefix="halfmq-")
        folder = Path(self._temporary.name) if self._temporary else Path(data_dir or "")
        settings.setdefault("database", f"sqlite:///{folder / 'halfmq.db'}")
        settings.setdefault("listen", "127.0.0.1:0")
        settings.setdefault("drain", 1.0)
        self._broker = Broker(BrokerConfig(auto_create=auto_create, **settings))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="halfmq-broker", daemon=True)

    @property
    def endpoint(self) -> str:
        """Where clients reach the broker."""
        return self._broker.endpoint

    def start(self) -> Self:
        """Starts serving.

        Raises:
            ConfigurationError: a setting is not usable.
        """
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop).result()
        except BaseException:
            self._end()
            raise
        return self

    def stop(self) -> None:
        """Stops serving and drops a temporary folder."""
        try:
            with contextlib.suppress(BrokerError):
                asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result()
        finally:
            self._end()

    def __enter__(self) -> Self:
        """Starts serving."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops serving."""
        self.stop()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._temporary is not None:
            self._temporary.cleanup()
