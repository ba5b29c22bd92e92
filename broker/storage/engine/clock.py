"""The database's time, without a query each time."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

SECOND = 1_000_000
QUICK = SECOND // 10
"""Microseconds that a reading may take to be used directly; its error is at most half of it."""
USUAL = 2
"""How much longer than the quickest of late a reading may take to be used directly."""
FORGET = 1.05
"""By how much the quickest one grows with each reading: the network may have become slower."""
WORTH_A_WORD = SECOND
"""Microseconds by which the database's clock must jump to be logged."""
MOST_APART = SECOND
"""Microseconds by which the clocks of two brokers differ at most.

Usual readings are within QUICK of each other. But a jump of the database's clock is noticed by one broker before the
other; larger ones are logged.
"""
LONGEST_STANDSTILL = 5 * SECOND
"""Maximum microseconds that this clock stops after the database's clock was set back."""


def _elapsed() -> int:
    # Continues while the machine sleeps, unlike the monotonic clock.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class DatabaseClock:
    """The database's time, from a reading of it and the time elapsed since.

    Brokers whose own clocks are wrong therefore agree on leases and checks. The reading is renewed by `synchronise`,
    which the broker calls every few seconds. On SQLite it is the machine's clock.
    """

    def __init__(self) -> None:
        """Starts with this machine's clock, until the first `synchronise`."""
        self._offset = time.time_ns() // 1000 - _elapsed()
        self._latest = 0
        self._synchronised = False
        self._quickest = float(QUICK)

    def now(self) -> int:
        """Microseconds since 1970 (UTC); after the first `synchronise` it goes back only with the database's clock."""
        self._latest = max(self._latest, _elapsed() + self._offset)
        return self._latest

    @property
    def ahead(self) -> int:
        """Microseconds by which the database's clock is ahead of this machine's, by the last reading."""
        return self._offset - (time.time_ns() // 1000 - _elapsed())

    def synchronise(self, session: Session) -> None:
        """Takes a new reading.

        It was made at some moment between the query and its answer. If these are further apart than usual, because the
        database or this machine was busy, the reading only gives bounds, and the earlier estimate is kept within them.
        """
        before = _elapsed()
        reading = session.dialect.now(session)
        after = _elapsed()
        known = self._offset
        took = after - before
        self._quickest = min(max(took, 1), self._quickest * FORGET)
        quick = took <= min(USUAL * self._quickest, QUICK)
        self._offset = reading - (before + after) // 2 if quick else min(max(known, reading - after), reading - before)
        if self._synchronised:
            self._follow(self._offset - known)
        else:
            # This machine's clock may have been ahead; the time would stop until the database's caught up.
            self._synchronised, self._latest = True, 0

    def _follow(self, jump: int) -> None:
        """Logs a jump of the database's clock, and bounds how long this clock stops."""
        if jump > WORTH_A_WORD:
            logger.warning(
                "the database's clock jumped %.1f s ahead: leases end and checks are due earlier", jump / SECOND
            )
        elif jump < -WORTH_A_WORD:
            ahead = self._latest - (_elapsed() + self._offset)
            back = ahead > LONGEST_STANDSTILL
            if back:
                self._latest = 0
            logger.warning(
                "the database's clock was set %.1f s back: %s",
                -jump / SECOND,
                "time goes back here too" if back else f"time stands still here for {max(ahead, 0) / SECOND:.1f} s",
            )
