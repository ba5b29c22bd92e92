"""Tracks outages of the database for all its users: one log line when it becomes unreachable, and one when it is back.

Errors that retries do not resolve are reported here, and successes during an outage. So a broker logs one line when the
database becomes unreachable, one a minute during the outage, and one when it is back, however many threads and calls
wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("halfmq.storage")

SAY_AGAIN = 60.0
QUIET = 5.0
"""Minimum seconds between the log lines of two outages, so that a flapping server does not fill the log."""


class Availability:
    """Logs outages of one database.

    Attributes:
        away: whether the last report was that the database cannot be used.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes a clock in seconds."""
        self.away = False
        self._clock = clock
        self._lock = threading.Lock()
        self._gone_at = 0.0
        self._failed_at = 0.0
        self._of_writing = False
        self._told = False
        self._said_at = -SAY_AGAIN

    def failed(self, what: str, error: BaseException, *, of_writing: bool = False) -> None:
        """Reports that the database could not be used.

        Args:
            what: a description of the problem.
            error: the driver's error.
            of_writing: it refuses writes, but may be readable.
        """
        with self._lock:
            now = self._failed_at = self._clock()
            self._of_writing = of_writing
            if not self.away:
                self.away, self._gone_at, self._told = True, now, False
            pause = SAY_AGAIN if self._told else QUIET
            if now - self._said_at < pause:
                return
            if self._told:
                logger.warning("the database is away for %.0f s (%s): %s", now - self._gone_at, what, error)
            else:
                logger.warning("the database is away (%s), work that needs it waits or fails: %s", what, error)
            self._told, self._said_at = True, now

    def answered(self, began: float, *, written: bool) -> None:
        """Reports the success of work that began at `began`; it supersedes failures before that."""
        with self._lock:
            if not self.away or began < self._failed_at or (self._of_writing and not written):
                return
            self.away = False
            if self._told:
                self._said_at = self._clock()
                logger.warning("the database is back after %.1f s", self._said_at - self._gone_at)
