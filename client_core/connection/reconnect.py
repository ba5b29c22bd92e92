"""Where and when to reopen a stream that ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from client_core.connection.link import Route

if TYPE_CHECKING:
    from client_core.connection.link import Broker, BrokerLink

__all__ = ["Reconnect"]

_STABLE_AFTER = 5.0


class Reconnect:
    """The endpoint of one long-lived stream, and the wait before each new attempt.

    The next endpoint is tried at once while there is one that was not tried yet; after that, waits grow as those of
    calls do. A stream that lasted for five seconds resets this.
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
        """Records the end of a stream and switches to the next endpoint.

        Args:
            broker: Where it ended.
            error: Its error; a retry time in it is respected. None: the broker ended the stream normally, as it does
                before it stops; a single endpoint may lead to several brokers, so even then the first new attempt is
                immediate.

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
