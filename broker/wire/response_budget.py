"""Answers on their way out: how many bytes of them may wait for their clients to read them.

gRPC takes an answer and keeps it until the client has room, and a client may never have any. Nobody can take an answer
back from gRPC, also not by ending its call. So the bytes are bounded before: of each connection, that one client leaves
room for others, and of all together.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from broker.errors import Overloaded
from broker.wire.budget import RETRY_AFTER, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CONNECTIONS = 4
"""So many connections with unread answers make it full."""


class ResponseBudget:
    """Bytes of answers that their clients have not read."""

    def __init__(self, most: int) -> None:
        """Takes how many there may be; a quarter of it for each connection."""
        self._most = most
        self.taken = 0
        self._by_peer: defaultdict[str, int] = defaultdict(int)

    def take(self, context: Any, response: Any) -> Callable[[object], None] | None:
        """Counts an answer, until what this returns is called; None: it is small, and has room always.

        Raises:
            Overloaded: too much waits already; the only answer of a connection has room while there is any.
        """
        size = len(response) if isinstance(response, bytes) else response.ByteSize()
        if size <= SMALL:
            return None
        peer = context.peer()
        theirs = self._by_peer.get(peer, 0)
        if (theirs and theirs + size > self._most // _CONNECTIONS) or (self.taken and self.taken + size > self._most):
            raise Overloaded(
                f"Answers of {theirs} bytes wait here for this connection to read them, of {self.taken} bytes for all,"
                f" and {self._most // _CONNECTIONS} and {self._most} are allowed; read them, or come back a little"
                " later, or go to another broker.",
                retry_after=RETRY_AFTER,
            )
        self._by_peer[peer] = theirs + size
        self.taken += size
        return partial(self._give_back, peer, size)

    def _give_back(self, peer: str, size: int, _: object) -> None:
        self.taken -= size
        self._by_peer[peer] -= size
        if not self._by_peer[peer]:
            del self._by_peer[peer]
