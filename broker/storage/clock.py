"""The database's time, without asking for it each time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.storage.session import Session

SERVER_NOW = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"


def _elapsed() -> int:
    # Goes on while the machine sleeps, unlike the monotonic clock.
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class DatabaseClock:
    """Tells the database's time from a reading of it and the time that passed since.

    Brokers whose own clocks are wrong therefore agree on leases and checks. The reading is renewed by `synchronise`,
    which the broker calls every few seconds. On SQLite it is the machine's clock.
    """

    def __init__(self) -> None:
        """Starts with this machine's clock, until the first `synchronise`."""
        self._offset = time.time_ns() // 1000 - _elapsed()
        self._latest = 0
        self._synchronised = False

    def now(self) -> int:
        """Microseconds since 1970 (UTC); never goes back after the first `synchronise`."""
        self._latest = max(self._latest, _elapsed() + self._offset)
        return self._latest

    def synchronise(self, session: Session) -> None:
        """Takes a new reading; half of the round trip is the error."""
        before = _elapsed()
        embedded = session.dialect.embedded
        reading = time.time_ns() // 1000 if embedded else int(session.fetch(SERVER_NOW)[0][0])
        self._offset = reading - (before + _elapsed()) // 2
        if not self._synchronised:
            # This machine's clock may have run ahead; time would stand still until the database's caught up.
            self._synchronised, self._latest = True, 0
