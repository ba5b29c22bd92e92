"""The gateway as a whole: its parts, and how a broker takes it in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker.rocketmq.calls import Callers, read_secrets
from broker.rocketmq.clients import Clients
from broker.rocketmq.consuming import Consuming
from broker.rocketmq.offsets import Offsets
from broker.rocketmq.producing import Producing
from broker.rocketmq.protocol import SERVICE, service_pb2_grpc
from broker.rocketmq.renewals import Renewals
from broker.rocketmq.routes import Routes, endpoints_of
from broker.rocketmq.servicer import MessagingServicer

if TYPE_CHECKING:
    import grpc

    from broker.api.interceptor import CallInterceptor
    from broker.services.catalog import Catalog
    from broker.services.check_sessions import CheckSessions
    from broker.services.checks import CheckAnswers
    from broker.services.delivery import DeliveryService
    from broker.services.groups import GroupService
    from broker.services.transactions import TransactionService
    from broker.storage.adapters.store import Store


class Gateway:
    """RocketMQ's protocol on a broker.

    Attributes:
        service: the name of its service.
        renewals: a loop that runs as long as the broker does.
    """

    service = SERVICE

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        transactions: TransactionService,
        delivery: DeliveryService,
        groups: GroupService,
        sessions: CheckSessions,
        answers: CheckAnswers,
        guard: CallInterceptor,
        *,
        host: str,
        endpoints: str = "",
        keys: str = "",
        signature_window: float = 0,
        shortest_invisible: int = 10_000_000,
    ) -> None:
        """Takes the broker's services.

        Args:
            store: where all is kept.
            catalog: topics and groups.
            transactions: half messages and verdicts.
            delivery: leases.
            groups: filters and offsets.
            sessions: who is asked about transactions.
            answers: what they answer.
            guard: how much may be under way.
            host: this broker's name.
            endpoints: addresses to announce, with commas between them; none: those that a client uses.
            keys: file with access keys and secret keys; none: signatures are not looked at.
            signature_window: seconds that the time of a signature may differ from this machine's; 0: any time.
            shortest_invisible: microseconds that a client may receive messages for, at least.

        Raises:
            ConfigurationError: an address or the file is not usable.
        """
        announced = endpoints_of(endpoints)
        callers = Callers(read_secrets(Path(keys)) if keys else None, window=signature_window)
        self._clients = Clients(catalog, sessions, transactions.limits.max_body)
        self.renewals = Renewals(delivery, self._clients, store.clock)
        self._servicer = MessagingServicer(
            callers,
            self._clients,
            Routes(catalog, announced),
            Producing(transactions, answers, self._clients, guard.budget),
            Consuming(delivery, groups, catalog, self._clients, self.renewals, store.clock, host, shortest_invisible),
            Offsets(delivery, groups, catalog, host),
            calls=guard.calls,
            streams=guard.streams,
        )

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Adds the protocol's service to a server."""
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self._servicer, server)

    def drain(self) -> None:
        """Ends all telemetry streams, so that clients go to another broker."""
        self._clients.drain()
