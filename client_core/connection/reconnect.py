"""Where a stream that ended is opened again, and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from client_core.connection.link import Route

if TYPE_CHECKING:
    from client_core.connection.link import Broker, BrokerLink

__all__ = ["Reconnect"]

_STABLE_AFTER = 5.0


class Reconnect:
    """The endpoint of one stream that is to live forever, and the wait before each new attempt.

    The next endpoint is tried at once while there is one that was not tried yet; after that, waits grow as those of
    calls do. A stream that stood for five seconds wipes the slate.
    """

    def __init__(self, link: BrokerLink) -> None:
        """Starts with the first endpoint of a link."""
        self._route = Route(link)
        self._retry = link.retry
        self._failures = 0
        self._opened_at = 0.0

    def broker(self) -> Broker:
        """The broker to open the stream to.

        Raises:
            ClientClosed: The link is closed.
        """
        self._opened_at = time.monotonic()
        return self._route.broker()

    def ended(self, broker: Broker, error: BaseException | None = None) -> float:
        """Notes the end of a stream and turns to the next endpoint.

        Args:
            broker: Where it ended.
            error: What it ended with; a time that the broker named in it is kept. None: the broker ended it by
                itself, as it does before it stops; with one endpoint there may be another broker behind it, so even
                then the first new attempt goes at once.

        Returns:
            Seconds to wait before the next attempt.
        """
        if time.monotonic() - self._opened_at > _STABLE_AFTER:
            self._failures = 0
        self._failures += 1
        self._route.fail_over(broker)
        hinted = self._retry.hinted(error)
        if hinted is not None:
            return hinted
        free = self._route.choices if error is None else self._route.choices - 1
        return 0.0 if self._failures <= free else self._retry.backoff(self._failures - free)
