"""Limits the bytes of answers that clients have not read yet.

gRPC keeps an answer until the client accepts it, which may never happen. An answer cannot be taken back from gRPC, not
even by ending its call. So the bytes are bounded beforehand: per connection, so that one client cannot use all of them,
and in total.
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
"""Number of connections with unread answers that use up the budget."""


class ResponseBudget:
    """Bytes of answers that their clients have not read."""

    def __init__(self, most: int) -> None:
        """Takes the limit; each connection may use a quarter of it."""
        self.most = most
        self.taken = 0
        self._by_peer: defaultdict[str, int] = defaultdict(int)

    def take(self, context: Any, response: Any) -> Callable[[object], None] | None:
        """Counts an answer, until the returned function is called; None: it is small, and not counted.

        Raises:
            Overloaded: the limit is reached; a connection's only answer is accepted while the total is not reached.
        """
        size = len(response) if isinstance(response, bytes) else response.ByteSize()
        if size <= SMALL:
            return None
        peer = context.peer()
        theirs = self._by_peer.get(peer, 0)
        if (theirs and theirs + size > self.most // _CONNECTIONS) or (self.taken and self.taken + size > self.most):
            raise Overloaded(
                f"Answers of {theirs} bytes wait here for this connection to read them, of {self.taken} bytes for all,"
                f" and {self.most // _CONNECTIONS} and {self.most} are allowed; read them, or come back a little"
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
