"""Brokers and connected clients, over all brokers on the database."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.errors import InvalidArgument
from broker.ports.connections import ALIVE, ClientKind
from broker.services.paging import page_limit

if TYPE_CHECKING:
    from broker.domain.clock import Clock
    from broker.ports.connections import BrokerStatus, ConnectedClient, ConnectionStore
    from broker.ports.sampling import Overview, OverviewStore
    from broker.services.judges import Judge

COUNT_EVERY = 1.0
"""Seconds between two counts of what there is."""
SLOW, OLD = 0.1, 10.0
"""Seconds that a count takes from which on nobody waits for it, if the last one is not older than that."""
LONGEST_TOKEN = 8_000
"""Characters of a page token: two names, in which each character may be written as an escape of six or twelve."""


@dataclass(frozen=True, slots=True)
class ClientSearch:
    """Which clients to list; what is empty is not looked at."""

    kind: ClientKind | None = None
    group: str = ""
    broker_id: str = ""


class ClusterOperations:
    """Lists brokers and their clients."""

    def __init__(self, store: ConnectionStore, counts: OverviewStore, clock: Clock) -> None:
        """Takes the ports of what brokers report and of what there is, and the database's clock."""
        self._store = store
        self._counts = counts
        self._clock = clock
        self._counting: asyncio.Task[Overview] | None = None
        self._last: Overview | None = None
        self._began = self._counted_at = float("-inf")
        self._took = 0.0

    async def overview(self, may: Judge | None = None) -> Overview:
        """What there is in all, counted once a second at most, however many ask.

        Where counting takes long, the figures may be some seconds old; they tell of when they are.

        `may`: the producer groups that may be seen; None: all.
        """
        found = await self._counted()
        if may is None:
            return found
        return replace(found, pending=[each for each in found.pending if may(each.producer_group)])

    async def brokers(self) -> list[tuple[BrokerStatus, bool]]:
        """The brokers by their names, and whether each one reported lately."""
        now = self._clock.now()
        return [(each, now - each.seen_at <= ALIVE) for each in await self._store.brokers()]

    async def _counted(self) -> Overview:
        now = asyncio.get_running_loop().time()
        if self._counting is None or (self._counting.done() and now - self._began >= COUNT_EVERY):
            self._began = now
            self._counting = asyncio.create_task(self._count(now))
        last = self._last
        if last is not None and self._took > SLOW and now - self._counted_at < OLD:
            return last
        return await asyncio.shield(self._counting)

    async def _count(self, began: float) -> Overview:
        self._last = await self._counts.overview()
        self._counted_at = asyncio.get_running_loop().time()
        self._took = self._counted_at - began
        return self._last

    async def clients(
        self, search: ClientSearch, page_size: int, page_token: str, may: Judge | None = None
    ) -> tuple[list[tuple[str, ConnectedClient]], str]:
        """A page of clients, each with the name of its broker, and the token of the next page.

        Args:
            search: which.
            page_size: at most so many.
            page_token: of the page before.
            may: the groups whose clients may be seen, and of these only such groups; None: all.
        """
        size = page_limit(page_size)
        after = _parse(page_token)
        found: list[tuple[str, ConnectedClient]] = []
        for status, alive in await self.brokers():
            name = status.broker_id
            if not alive or (search.broker_id and name != search.broker_id) or (after and name < after[0]):
                continue
            clients = sorted(await self._store.clients_of(name), key=lambda each: (each.connected_at, each.client_id))
            for client in clients:
                if after and (name, client.connected_at, client.client_id) <= after:
                    continue
                shown = _shown(client, search, may)
                if shown is not None:
                    found.append((name, shown))
            if len(found) > size:
                break
        page = await self._with_held(found[:size])
        return page, _token(*page[-1]) if len(found) > size else ""

    async def _with_held(self, page: list[tuple[str, ConnectedClient]]) -> list[tuple[str, ConnectedClient]]:
        consumers = {
            (group, client.client_id)
            for _, client in page
            if client.kind is ClientKind.CONSUMER
            for group in client.groups
        }
        held = await self._store.held_by(consumers) if consumers else {}
        return [
            (name, replace(client, held=sum(held.get((group, client.client_id), 0) for group in client.groups)))
            if client.kind is ClientKind.CONSUMER
            else (name, client)
            for name, client in page
        ]


def _shown(client: ConnectedClient, search: ClientSearch, may: Judge | None) -> ConnectedClient | None:
    """A client as far as it may be seen; None if it is not wanted, or not to be seen."""
    if search.kind is not None and client.kind is not search.kind:
        return None
    if search.group and search.group not in client.groups:
        return None
    if may is None:
        return client
    groups = tuple(group for group in client.groups if may(group))
    return replace(client, groups=groups) if groups else None


def _token(broker_id: str, client: ConnectedClient) -> str:
    return json.dumps([broker_id, client.connected_at, client.client_id], separators=(",", ":"))


def _parse(token: str) -> tuple[str, int, str] | None:
    if not token:
        return None
    try:
        if len(token) > LONGEST_TOKEN:
            raise ValueError(token)
        broker_id, connected_at, client_id = json.loads(token)
        if not (isinstance(broker_id, str) and isinstance(connected_at, int) and isinstance(client_id, str)):
            raise TypeError(token)
    except (ValueError, TypeError, RecursionError):
        raise InvalidArgument(
            "This is no page token; use next_page_token of the page before.", field="page_token"
        ) from None
    return broker_id, connected_at, client_id
