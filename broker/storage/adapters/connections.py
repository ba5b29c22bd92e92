"""What brokers report, through the threads of look-ups and of background work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.storage.adapters.access import Access
from broker.storage.catalog import brokers
from broker.storage.groups import holders

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.ports.connections import BrokerStatus, ConnectedClient


class Connections(Access):
    """Implements ConnectionStore, and of RetentionStore what is about brokers."""

    async def report_broker(self, status: BrokerStatus, clients: Sequence[ConnectedClient] | None) -> bool:
        """Replaces what a broker reported before; None: its clients are unchanged."""
        now = self.clock.now()
        return await self._clean(lambda session: brokers.report(session, status, clients, now))

    async def forget_broker(self, status: BrokerStatus) -> None:
        """Removes a broker that ends."""
        await self._clean(lambda session: brokers.forget(session, status))

    async def forget_silent_brokers(self, silent: int) -> int:
        """Removes brokers that have not reported for `silent` microseconds; returns how many."""
        before = self.clock.now() - silent
        return await self._clean(lambda session: brokers.remove_silent(session, before))

    async def brokers(self) -> list[BrokerStatus]:
        """The brokers that reported lately, by their names."""
        return await self._read(brokers.all_brokers)

    async def clients_of(self, broker_id: str) -> list[ConnectedClient]:
        """The clients that a broker reported; empty if it is not known."""
        return await self._read(lambda session: brokers.clients_of(session, broker_id))

    async def held_by(self, consumers: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """How many messages consumers hold under leases and have not settled, by group and client id."""
        return await self._read(lambda session: holders.held_by(session, consumers))
