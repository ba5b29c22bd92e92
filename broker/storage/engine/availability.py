"""Whether the database can be used, as all who work with it find out together: one line when it goes and comes back.

Everything that meets an error that no repetition mends tells it here, and so does whatever succeeds while the database
is away. So a broker writes one line in the log when the database goes, one a minute while it is away, and one when it
is back, however many threads and calls wait for it.
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
"""Seconds between what is said of two outages: a server that takes every other connection fills no log."""


class Availability:
    """Returns outages of one database to the log.

    Attributes:
        away: whether the last that was heard of the database is that it cannot be used.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes a clock that tells seconds."""
        self.away = False
        self._clock = clock
        self._lock = threading.Lock()
        self._gone_at = 0.0
        self._failed_at = 0.0
        self._of_writing = False
        self._told = False
        self._said_at = -SAY_AGAIN

    def failed(self, what: str, error: BaseException, *, of_writing: bool = False) -> None:
        """The database did not take something for a reason of its own.

        Args:
            what: the kind of trouble, for people.
            error: the driver's word.
            of_writing: it refuses to write, and may well be read.
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
        """Something that began at `began` succeeded; it tells more than what failed before it began."""
        with self._lock:
            if not self.away or began < self._failed_at or (self._of_writing and not written):
                return
            self.away = False
            if self._told:
                self._said_at = self._clock()
                logger.warning("the database is back after %.1f s", self._said_at - self._gone_at)
