"""What one client may have under way, so that it leaves something to the others.

A client is whoever is known by one name; without access control it is one connection.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.errors import ClientOverloaded
from broker.wire.budget import RETRY_AFTER, Budget

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

SHARE = 0.75
"""Of what a broker takes, that one client may have, unless it is told otherwise."""
MOST_WAITING = 1000
"""Refusals that wait at a time."""


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """The most of one client; 0 stands for no limit.

    Attributes:
        calls: under way.
        streams: under way.
        request_bytes: of its requests under way.
        connections: with calls or streams under way; of one name, or of one address.
    """

    calls: int = 0
    streams: int = 0
    request_bytes: int = 0
    connections: int = 0

    @classmethod
    def within(cls, calls: int, streams: int, request_bytes: int, bounds: ClientBounds) -> ClientBounds:
        """Those bounds, where they are 0 a share of what the broker takes."""
        return cls(
            bounds.calls or math.ceil(calls * SHARE),
            bounds.streams or math.ceil(streams * SHARE),
            bounds.request_bytes or math.ceil(request_bytes * SHARE),
            bounds.connections,
        )


@dataclass(slots=True, eq=False)
class Client:
    """What a client has under way."""

    budget: Budget
    under_way: dict[str, int] = field(default_factory=lambda: {"calls": 0, "streams": 0})


def pause_before_telling(error: BaseException) -> float:
    """Seconds before a client is told of an error: one that comes back at once, over and over, costs others."""
    return error.retry_after if isinstance(error, ClientOverloaded) else 0.0


NO_BOUNDS = ClientBounds()


class ClientLimits:
    """Counts what each client has under way, and refuses more."""

    def __init__(self, bounds: ClientBounds) -> None:
        """Takes the most of one client."""
        self._bounds = bounds
        self._clients: dict[str, Client] = {}
        self._connections: dict[str, Counter[str]] = {}
        self._waiting = 0

    def call(self, name: str, peer: str) -> AbstractContextManager[Client]:
        """Counts a call while it lasts.

        Args:
            name: by which the client is known; empty: it is not.
            peer: its connection, as gRPC names it.

        Raises:
            ClientOverloaded: it has too much under way.
        """
        return self._counted(name, peer, "calls", self._bounds.calls)

    def stream(self, name: str, peer: str) -> AbstractContextManager[Client]:
        """Counts a stream while it lasts; as `call`."""
        return self._counted(name, peer, "streams", self._bounds.streams)

    @contextmanager
    def _counted(self, name: str, peer: str, what: str, most: int) -> Iterator[Client]:
        key = name or peer
        if self._bounds.connections:
            self._connect(name, peer)
        try:
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = Client(Budget(self._bounds.request_bytes or sys.maxsize))
            if most and client.under_way[what] >= most:
                raise ClientOverloaded(what, most, RETRY_AFTER)
            client.under_way[what] += 1
            try:
                yield client
            finally:
                client.under_way[what] -= 1
                if not any(client.under_way.values()):
                    self._clients.pop(key, None)
        finally:
            if self._bounds.connections:
                self._disconnect(name, peer)

    async def wait(self, pause: float) -> None:
        """Lets a client wait for its refusal; not too many at a time."""
        if self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting -= 1

    def _connect(self, name: str, peer: str) -> None:
        used = self._connections.setdefault(_owner(name, peer), Counter())
        if peer not in used and len(used) >= self._bounds.connections:
            raise ClientOverloaded("connections", self._bounds.connections, RETRY_AFTER)
        used[peer] += 1

    def _disconnect(self, name: str, peer: str) -> None:
        used = self._connections[_owner(name, peer)]
        used[peer] -= 1
        if not used[peer]:
            del used[peer]
            if not used:
                del self._connections[_owner(name, peer)]


def _owner(name: str, peer: str) -> str:
    """Whose connections are counted together: those of one name, or of one address."""
    return name or peer.rpartition(":")[0]
