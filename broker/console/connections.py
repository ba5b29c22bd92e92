"""Connections of browsers: so many at a time, and none that keeps others out by doing nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

LEAST_READ = 64 * 1024
"""Bytes of an answer that a browser reads between two looks, unless there are fewer."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """How many connections there are, and for how long one may keep the broker waiting.

    Attributes:
        most: at a time.
        most_of_address: of one address; the rest is for others.
        request: seconds for a request to arrive, with its form.
        look: seconds between two looks at what was not read of an answer: at the second one without progress the
            connection ends.
    """

    most: int = 200
    most_of_address: int = 150
    request: float = 10.0
    look: float = 5.0


class BrowserConnection(H11Protocol):
    """One connection. Where there is no room, the one that has been waiting for a request for the longest time ends."""

    def __init__(self, *args: Any, bounds: ConnectionBounds, **kwargs: Any) -> None:
        """Takes the bounds, and what uvicorn's own takes."""
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._waits_since = self.loop.time()
        self._unread = 0
        self._stalled = False
        self._look_task: asyncio.TimerHandle | None = None

    @property
    def host(self) -> str:
        """Where it comes from, without the port."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, as far as there is one."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        others = [each for each in self.connections if isinstance(each, BrowserConnection) and each is not self]
        own = [each for each in others if each.host == self.host]
        for some, most in ((own, self._bounds.most_of_address), (others, self._bounds.most)):
            open_ones = [each for each in some if not each.transport.is_closing()]
            if len(open_ones) >= most:
                (_longest_waiting(open_ones) or self).transport.abort()
        self._look_task = self.loop.call_later(self._bounds.look, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives its place back."""
        if self._look_task is not None:
            self._look_task.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """The next request has its own time."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    @property
    def waits_since(self) -> float | None:
        """Since when it waits for a request, or for the end of one; None: it is being answered."""
        answered = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return None if answered else self._waits_since

    def _look(self) -> None:
        unread = self.transport.get_write_buffer_size()
        stands_still = unread > 0 and unread > self._unread - LEAST_READ and self._unread > 0
        since = self.waits_since
        late = since is not None and not unread and self.loop.time() - since > self._bounds.request
        if late or (stands_still and self._stalled):
            self.transport.abort()
            return
        self._unread, self._stalled = unread, stands_still
        self._look_task = self.loop.call_later(self._bounds.look, self._look)


def _longest_waiting(connections: Iterable[BrowserConnection]) -> BrowserConnection | None:
    waiting = [(since, each) for each in connections if (since := each.waits_since) is not None]
    return min(waiting, key=lambda item: item[0])[1] if waiting else None
