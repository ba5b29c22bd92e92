"""The database's time, without asking for it each time."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

SECOND = 1_000_000
QUICK = SECOND // 10
"""Microseconds that a reading may take to be believed as it is; half of them may be its error."""
WORTH_A_WORD = SECOND
"""Microseconds by which the database's clock has to jump for the log to say so."""
LONGEST_STANDSTILL = 5 * SECOND
"""Microseconds that time stands still here, at most, once the database's clock was set back."""


def _elapsed() -> int:
    # Goes on while the machine sleeps, unlike the monotonic clock.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class DatabaseClock:
    """Returns the database's time from a reading of it and the time that passed since.

    Brokers whose own clocks are wrong therefore agree on leases and checks. The reading is renewed by `synchronise`,
    which the broker calls every few seconds. On SQLite it is the machine's clock.
    """

    def __init__(self) -> None:
        """Starts with this machine's clock, until the first `synchronise`."""
        self._offset = time.time_ns() // 1000 - _elapsed()
        self._latest = 0
        self._synchronised = False

    def now(self) -> int:
        """Microseconds since 1970 (UTC); after the first `synchronise` it goes back only with the database's clock."""
        self._latest = max(self._latest, _elapsed() + self._offset)
        return self._latest

    def synchronise(self, session: Session) -> None:
        """Takes a new reading.

        It was made at some moment between the question and its answer. Where these are far apart, because the database
        stood still, the reading only tells within which bounds its time is, and what was known before holds in them.
        """
        before = _elapsed()
        reading = session.dialect.now(session)
        after = _elapsed()
        known = self._offset
        quick = after - before <= QUICK
        self._offset = reading - (before + after) // 2 if quick else min(max(known, reading - after), reading - before)
        if self._synchronised:
            self._follow(self._offset - known)
        else:
            # This machine's clock may have run ahead; time would stand still until the database's caught up.
            self._synchronised, self._latest = True, 0

    def _follow(self, jump: int) -> None:
        """Says what a jump of the database's clock means here, and bounds how long time stands still."""
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
