"""What brokers report of themselves and of the clients with a stream to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


ALIVE = 15_000_000
"""Microseconds since the last report of a broker that counts as alive: three of its intervals."""
MOST_NAMES = 50
"""Groups and topics of a client that are reported, each."""
SILENT = 600 * 1_000_000
"""Microseconds after which a broker that does not report is listed no more."""


class ClientKind(IntEnum):
    """What a client does; the numbers are stored and sent."""

    PRODUCER = 1
    CONSUMER = 2


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client with an open stream; see ConnectedClient of the protocol. Time in microseconds."""

    kind: ClientKind
    client_id: str
    address: str
    library: str
    principal: str
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    connected_at: int
    credits: int | None = None
    byte_credits: int | None = None
    delivered: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What a broker reports of itself; times in microseconds.

    Attributes:
        broker_id: its name.
        seen_at: when it reported; set by the storage.
        producers, consumers: how many have a stream to it.
    """

    broker_id: str
    host: str
    pid: int
    endpoint: str
    version: str
    started_at: int
    seen_at: int = 0
    producers: int = 0
    consumers: int = 0


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """How a broker is.

    Attributes:
        ready: whether it can use the database, and finds its tables.
        failed_rounds: of maintenance since it started, and parts of rounds, by loop.
        database_errors: of transactions since it started, by kind.
        clock_difference: microseconds by which the database's clock is ahead of its machine's.
    """

    ready: bool
    failed_rounds: Mapping[str, int]
    database_errors: Mapping[str, int]
    clock_difference: int


class ConnectionStore(Protocol):
    """What brokers report."""

    async def report_broker(self, status: BrokerStatus, clients: Sequence[ConnectedClient] | None) -> bool:
        """Replaces what a broker reported before; None: its clients are unchanged.

        Returns whether that was done: without clients it is not, where the last report is of another process, or gone.

        Raises:
            DatabaseReplaced: the database is in an earlier state than at the last report.
        """
        ...

    async def forget_broker(self, status: BrokerStatus) -> None:
        """Removes a broker that ends, unless another process reports under its name by now."""
        ...

    async def brokers(self) -> list[BrokerStatus]:
        """The brokers that reported lately, by their names."""
        ...

    async def clients_of(self, broker_id: str) -> list[ConnectedClient]:
        """The clients that a broker reported; empty if it is not known."""
        ...

    async def held_by(self, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """How many messages consumers hold under leases and have not settled, by group and client id."""
        ...
