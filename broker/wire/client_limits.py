"""What one client may have under way, so that it leaves something to the others.

A client is whoever is known by one name; without access control it is one connection.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.errors import ClientOverloaded
from broker.wire.budget import RETRY_AFTER, Budget
from broker.wire.turns import Line, Turns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from broker.wire.turns import Turn

SHARE = 0.75
"""Of what a broker takes, that one client may have, unless it is told otherwise."""
PACE = 0.01
"""Seconds between two refusals of one client."""
MOST_WATCHES_OF_ONE = 100
"""Streams of one client that watch the broker's health."""
LONGEST_PAUSE = 10.0
"""Seconds that a refusal waits at most."""
MOST_WAITING = 10_000
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
class _Paced:
    """Refuses what there is too much of, one by one."""

    last_refusal: float = 0.0

    def refusal(self, what: str, most: int) -> ClientOverloaded:
        """A refusal, which is told at the earliest PACE after the one before: refusing costs others, too."""
        now = time.monotonic()
        # Those beyond the longest pause are told together: they do not make the ones after them wait for longer.
        self.last_refusal = min(max(now + RETRY_AFTER, self.last_refusal + PACE), now + LONGEST_PAUSE)
        return ClientOverloaded(what, most, RETRY_AFTER, pause=self.last_refusal - now)


class _BudgetOfClient(Budget):
    """Bytes of one client's requests; its refusals are paced."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._paced = _Paced()

    def take(self, size: int) -> None:
        if not self.has_room(size):
            raise self._paced.refusal("bytes of requests", self.most)
        self.taken += size


@dataclass(slots=True, eq=False)
class Client(_Paced):
    """What a client has under way.

    Attributes:
        line: its calls that take turns.
        budget: bytes of its requests.
        under_way: calls and streams, by what they count as.
        is_remembered: whether it is kept though it has nothing under way.
    """

    line: Line = field(default_factory=lambda: Line(""))
    budget: Budget = field(default_factory=lambda: Budget(sys.maxsize))
    under_way: dict[str, int] = field(default_factory=lambda: {"calls": 0, "streams": 0, "watches": 0, "others": 0})
    is_remembered: bool = False


@dataclass(slots=True, eq=False)
class _Connections(_Paced):
    """The connections of one name or address, with the calls and streams of each."""

    under_way: Counter[str] = field(default_factory=Counter)


NO_BOUNDS = ClientBounds()


class ClientLimits:
    """Counts what each client has under way, and refuses more."""

    def __init__(self, bounds: ClientBounds) -> None:
        """Takes the most of one client."""
        self._bounds = bounds
        self._clients: dict[str, Client] = {}
        self._connections: dict[str, _Connections] = {}
        self._waiting = 0
        self._turns = Turns()

    def call(self, name: str, peer: str, *, counted: bool = True) -> AbstractContextManager[Client]:
        """Counts a call while it lasts.

        Args:
            name: by which the client is known; empty: it is not.
            peer: its connection, as gRPC names it.
            counted: whether its calls are limited; health checks and those of operators are not.

        Raises:
            ClientOverloaded: it has too much under way.
        """
        return self._counted(name, peer, "calls" if counted else "others", self._bounds.calls if counted else 0)

    def stream(self, name: str, peer: str) -> AbstractContextManager[Client]:
        """Counts a stream while it lasts; as `call`."""
        return self._counted(name, peer, "streams", self._bounds.streams)

    def watch(self, name: str, peer: str) -> AbstractContextManager[Client]:
        """Counts a stream that watches the broker's health while it lasts; as `call`."""
        return self._counted(name, peer, "watches", MOST_WATCHES_OF_ONE)

    @contextmanager
    def _counted(self, name: str, peer: str, what: str, most: int) -> Iterator[Client]:
        key = name or peer
        if self._bounds.connections:
            self._connect(name, peer)
        try:
            client = self._clients.get(key)
            if client is None:
                client = self._clients[key] = Client(
                    line=Line(key), budget=_BudgetOfClient(self._bounds.request_bytes or sys.maxsize)
                )
            if most and client.under_way[what] >= most:
                raise client.refusal(what, most)
            client.under_way[what] += 1
            try:
                yield client
            finally:
                client.under_way[what] -= 1
                self._forget(key, client)
        finally:
            if self._bounds.connections:
                self._disconnect(name, peer)

    def _forget(self, key: str, client: Client) -> None:
        if any(client.under_way.values()) or self._clients.get(key) is not client:
            return
        left = client.last_refusal - time.monotonic()
        if left <= 0:
            del self._clients[key]
        elif not client.is_remembered:
            # Its refusals stay paced, though it has nothing under way at the moment.
            client.is_remembered = True
            asyncio.get_running_loop().call_later(left, self._forget_later, key, client)

    def _forget_later(self, key: str, client: Client) -> None:
        client.is_remembered = False
        self._forget(key, client)

    def turn(self, client: Client) -> Turn:
        """Has a call of a client take turns with those of others while it lasts."""
        return self._turns.turn(client.line)

    async def wait(self, pause: float) -> None:
        """Lets a client wait for its refusal; not too many at a time."""
        if self._waiting < MOST_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._waiting -= 1

    def _connect(self, name: str, peer: str) -> None:
        own = self._connections.setdefault(_owner(name, peer), _Connections())
        if peer not in own.under_way and len(own.under_way) >= self._bounds.connections:
            raise own.refusal("connections", self._bounds.connections)
        own.under_way[peer] += 1

    def _disconnect(self, name: str, peer: str) -> None:
        used = self._connections[_owner(name, peer)].under_way
        used[peer] -= 1
        if not used[peer]:
            del used[peer]
            if not used:
                del self._connections[_owner(name, peer)]


def _owner(name: str, peer: str) -> str:
    """Whose connections are counted together: those of one name, or of one address."""
    return name or peer.rpartition(":")[0]
