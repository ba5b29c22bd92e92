"""The clients with a stream to this broker, for operators."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from broker.ports.connections import MOST_NAMES, BrokerStatus, ClientKind, ConnectedClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.domain.clock import Clock
    from broker.ports.connections import ConnectionStore

MOST_REPORTED = 10_000
"""Clients of a broker that it reports; it counts all."""


class Figures(NamedTuple):
    """What changes while a client is connected."""

    credits: int | None = None
    byte_credits: int | None = None
    delivered: int = 0
    held: int = 0


@dataclass(slots=True, eq=False)
class Connected:
    """A client with an open stream; its groups and topics may become known later.

    Attributes:
        kind: what it does; None: that is not known yet, and it is not listed.
        client_id: its name.
        address: where it calls from.
        library: its library and version, as it says.
        principal: who it is.
        figures: reads what changes.
    """

    kind: ClientKind | None
    client_id: str
    address: str
    library: str
    principal: str
    groups: Sequence[str] = ()
    topics: Sequence[str] = ()
    figures: Callable[[], Figures] = Figures
    since: int = field(default=0, init=False)


class Connections:
    """Who is connected to this broker."""

    def __init__(self, clock: Clock) -> None:
        """Starts empty; takes the database's clock."""
        self._clock = clock
        self._open: dict[Connected, None] = {}

    @contextmanager
    def open(self, client: Connected) -> Iterator[None]:
        """Lists a client as long as its stream is open."""
        client.since = self._clock.now()
        self._open[client] = None
        try:
            yield
        finally:
            del self._open[client]

    def counts(self) -> Counter[ClientKind]:
        """How many there are of each kind."""
        return Counter(client.kind for client in self._open if client.kind is not None)

    def snapshot(self) -> list[ConnectedClient]:
        """Those that are connected now, the first ones of many."""
        found: list[ConnectedClient] = []
        for client in list(self._open):
            if client.kind is None:
                continue
            if len(found) == MOST_REPORTED:
                break
            figures = client.figures()
            found.append(
                ConnectedClient(
                    client.kind,
                    client.client_id,
                    client.address,
                    client.library,
                    client.principal,
                    tuple(client.groups[:MOST_NAMES]),
                    tuple(client.topics[:MOST_NAMES]),
                    client.since,
                    *figures,
                )
            )
        return found


class BrokerReports:
    """Reports this broker and its clients, so that every broker can tell of all."""

    def __init__(self, store: ConnectionStore, connections: Connections, status: BrokerStatus) -> None:
        """Takes the port, the clients, and what does not change about this broker."""
        self._store = store
        self._connections = connections
        self.status = status
        self._reported: list[ConnectedClient] | None = None

    async def report(self) -> None:
        """Reports what is so now; clients only where something changed."""
        counts, clients = self._connections.counts(), self._connections.snapshot()
        known = self.status
        status = BrokerStatus(
            known.broker_id,
            known.host,
            known.pid,
            known.endpoint,
            known.version,
            known.started_at,
            producers=counts[ClientKind.PRODUCER],
            consumers=counts[ClientKind.CONSUMER],
        )
        changed = None if clients == self._reported else clients
        self._reported = None
        if not await self._store.report_broker(status, changed):
            await self._store.report_broker(status, clients)
        self._reported = clients

    async def leave(self) -> None:
        """This broker ends."""
        await self._store.forget_broker(self.status)
