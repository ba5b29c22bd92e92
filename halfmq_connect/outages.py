"""Saying once that a system does not answer, and once that it does again."""

from __future__ import annotations

import logging
import threading
import time

__all__ = ["Outage"]

_log = logging.getLogger("halfmq.connect")

_SAY_AGAIN = 60.0


class Outage:
    """Whether one system answers; logged when that changes, and every minute until it does. Safe between threads."""

    def __init__(self, system: str) -> None:
        """Takes the system's name: it answers, so far."""
        self._system = system
        self._lock = threading.Lock()
        self._since: float | None = None
        self._said = 0.0

    @property
    def is_away(self) -> bool:
        """Whether it did not answer when it was last asked."""
        return self._since is not None

    def note(self, error: object) -> None:
        """It does not answer."""
        now = time.monotonic()
        with self._lock:
            first = self._since is None
            self._since = now if self._since is None else self._since
            if not first and now - self._said < _SAY_AGAIN:
                return
            self._said = now
        _log.warning("%s does not answer; trying again until it does: %s", self._system, error)

    def over(self) -> None:
        """It answered."""
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            _log.warning("%s answers again, after %.0f s", self._system, time.monotonic() - since)
