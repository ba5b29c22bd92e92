"""The gateway as a whole: its parts, and its integration into a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.rocketmq.calls import FIELD, Callers, read_secrets
from broker.rocketmq.clients import Clients
from broker.rocketmq.consuming import Consuming
from broker.rocketmq.offsets import Offsets
from broker.rocketmq.producing import Producing
from broker.rocketmq.protocol import SERVICE, service_pb2_grpc
from broker.rocketmq.renewals import Renewals
from broker.rocketmq.routes import Routes, endpoints_of
from broker.rocketmq.servicer import MessagingServicer
from broker.wire.credentials.files import WatchedFile

if TYPE_CHECKING:
    import grpc

    from broker.domain.clock import Clock
    from broker.services.catalog import Catalog
    from broker.services.connections import Connections
    from broker.services.consuming.config import DeliveryConfig
    from broker.services.consuming.delivery import DeliveryService
    from broker.services.consuming.reading import QueueReader
    from broker.services.consuming.receipts import ReceiptService
    from broker.services.operating.groups import GroupService
    from broker.services.operating.topics import TopicService
    from broker.services.producing.check_sessions import CheckSessions
    from broker.services.producing.checks import CheckAnswers
    from broker.services.producing.sending import SendService
    from broker.services.producing.transactions import TransactionService
    from broker.services.rights import Rights
    from broker.wire.interceptor import CallInterceptor


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of the gateway.

    Attributes:
        host: this broker's name.
        endpoints: addresses to announce, separated by commas; none: those that a client uses.
        keys: file with access keys and secret keys, read again when it was replaced; none: signatures are not checked.
        signature_window: seconds that the time of a signature may differ from this machine's; 0: any time.
        shortest_invisible: microseconds that a client may receive messages for, at least.
    """

    host: str
    endpoints: str = ""
    keys: str = ""
    signature_window: float = 0
    shortest_invisible: int = 10_000_000


class Gateway:
    """RocketMQ's protocol on a broker.

    Attributes:
        service: the name of its service.
        renewals: a loop that runs as long as the broker does.
    """

    service = SERVICE

    def __init__(
        self,
        config: GatewayConfig,
        *,
        clock: Clock,
        catalog: Catalog,
        transactions: TransactionService,
        sending: SendService,
        answers: CheckAnswers,
        sessions: CheckSessions,
        connections: Connections,
        delivery: DeliveryService,
        receipts: ReceiptService,
        delivery_config: DeliveryConfig,
        reader: QueueReader,
        topics: TopicService,
        groups: GroupService,
        guard: CallInterceptor,
        rights: Rights | None = None,
    ) -> None:
        """Takes its settings, the broker's services, the load limits, and the rights; without them all is allowed.

        Raises:
            ConfigurationError: an address or the file is not usable.
        """
        announced = endpoints_of(config.endpoints)
        secrets = WatchedFile(config.keys, read_secrets, field=FIELD) if config.keys else None
        callers = Callers(secrets, window=config.signature_window, rights=rights)
        guard.known_to[self.service] = callers.know
        self._clients = Clients(catalog, sessions, connections, transactions.limits.max_body)
        self.renewals = Renewals(receipts, self._clients, clock, delivery_config.lease_time)
        self._servicer = MessagingServicer(
            callers,
            self._clients,
            Routes(catalog, announced),
            Producing(transactions, sending, answers, self._clients, guard.budget),
            Consuming(
                delivery,
                receipts,
                delivery_config,
                groups,
                catalog,
                self._clients,
                self.renewals,
                clock,
                config.host,
                config.shortest_invisible,
            ),
            Offsets(reader, groups, topics, config.host),
            calls=guard.calls,
            streams=guard.streams,
            limits=guard.clients,
        )

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Adds the protocol's service to a server."""
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self._servicer, server)

    def drain(self) -> None:
        """Ends all telemetry streams, so that clients switch to another broker."""
        self._clients.drain()
