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
    from broker.ports.connections import BrokerHealth, BrokerStatus, ConnectedClient, ConnectionStore
    from broker.ports.sampling import Overview, OverviewStore
    from broker.services.judges import Judge
    from broker.services.operating.health import OwnHealth

SECOND = 1_000_000
COUNT_EVERY = 1.0
"""Seconds between two counts of what there is."""
SLOW, OLD = 0.1, 5.0
"""Seconds that a count takes from which on nobody waits for it, if the last one is not older than that."""
MOST_GROUPS = 100
"""Consumer groups whose dead letters are told one by one."""
LONGEST_TOKEN = 8_000
"""Characters of a page token: two names, in which each character may be written as an escape of six or twelve."""


@dataclass(frozen=True, slots=True)
class ClientSearch:
    """Which clients to list; what is empty is not looked at."""

    kind: ClientKind | None = None
    group: str = ""
    broker_id: str = ""


@dataclass(frozen=True, slots=True)
class _Count:
    """Figures, and when counting them began and ended (seconds of the event loop)."""

    found: Overview
    began: float
    ended: float

    @property
    def took(self) -> float:
        """Seconds that counting took."""
        return self.ended - self.began


class ClusterOperations:
    """Lists brokers and their clients."""

    def __init__(
        self, store: ConnectionStore, counts: OverviewStore, clock: Clock, health: OwnHealth, *, keep_ops: int
    ) -> None:
        """Takes where figures come from.

        Args:
            store: what brokers report.
            counts: what there is.
            clock: the database's.
            health: that of this broker.
            keep_ops: microseconds that op records are kept.
        """
        self._store = store
        self._counts = counts
        self._clock = clock
        self._health = health
        self._keep_ops = keep_ops
        self._counting: asyncio.Task[_Count] | None = None
        self._last: _Count | None = None
        self._began = float("-inf")

    async def overview(self, may: Judge | None = None, wait: int | None = None) -> Overview | None:
        """What there is in all, counted once a second at most, however many ask.

        Where counting takes long, the figures may be some seconds old; they tell how old they are.

        Args:
            may: the producer and consumer groups that may be seen; None: all.
            wait: microseconds to wait for a new count at most; the last figures are returned after that, whatever
                their age. None: until it is counted.

        Returns:
            The figures; None: it is being counted for the first time, and takes longer than that.
        """
        asked = asyncio.get_running_loop().time()
        counted = await self._counted(asked, None if wait is None else wait / SECOND)
        if counted is None:
            return None
        found = counted.found
        pending, letters = found.pending, found.dead_letters_by_group
        if may is not None:
            pending = [each for each in pending if may(each.producer_group)]
            letters = [each for each in letters if may(each.consumer_group)]
        behind = 0 if found.oldest_op is None else max(0, found.time - found.oldest_op - self._keep_ops)
        return replace(
            found,
            pending=pending,
            dead_letters_by_group=letters[:MOST_GROUPS],
            dead_letter_groups=len(letters),
            retention_behind=behind,
            age=max(0, int((asked - counted.began) * SECOND)),
        )

    async def brokers(self) -> list[tuple[BrokerStatus, bool]]:
        """The brokers by their names, and whether each one reported lately."""
        now = self._clock.now()
        return [(each, now - each.seen_at <= ALIVE) for each in await self._store.brokers()]

    def health_of(self, broker_id: str) -> BrokerHealth | None:
        """How a broker is; None: it is not this one."""
        return self._health.of(broker_id)

    async def _counted(self, now: float, wait: float | None) -> _Count | None:
        if self._counting is None or (self._counting.done() and now - self._began >= COUNT_EVERY):
            self._began = now
            self._counting = asyncio.create_task(self._count(now))
            # It may fail when nobody waits for it any more; the next one tells.
            self._counting.add_done_callback(_looked_at)
        counting, last = self._counting, self._last
        if last is not None and last.took > SLOW and now - last.ended < OLD:
            return last
        if wait is not None:
            await asyncio.wait({counting}, timeout=wait)
            if not counting.done():
                return self._last
        return await asyncio.shield(counting)

    async def _count(self, began: float) -> _Count:
        found = await self._counts.overview()
        self._last = _Count(found, began, asyncio.get_running_loop().time())
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


def _looked_at(counting: asyncio.Task[_Count]) -> None:
    if not counting.cancelled():
        counting.exception()


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
