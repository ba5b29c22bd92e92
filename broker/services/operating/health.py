"""How this broker is: what failed since it started, and whether it can use the database."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from broker.ports.connections import BrokerHealth
from broker.ports.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable


class FailureTally(Observer):
    """Counts rounds of maintenance and database transactions that failed. Their names are the broker's own: few."""

    __slots__ = ("_errors", "_lock", "_rounds")

    def __init__(self) -> None:
        """Starts at nothing."""
        # Database transactions run on several threads.
        self._lock = threading.Lock()
        self._rounds: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def round_ended(self, loop: str, seconds: float, error: Exception | None) -> None:
        """Counts a round that failed."""
        if error is not None:
            self.piece_failed(loop)

    def piece_failed(self, loop: str) -> None:
        """Counts a part of a round."""
        with self._lock:
            self._rounds[loop] += 1

    def database_failed(self, kind: str) -> None:
        """Counts an error of the database."""
        with self._lock:
            self._errors[kind] += 1

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Failed rounds by loop, and errors of the database by kind; each in the order of the names."""
        with self._lock:
            return dict(sorted(self._rounds.items())), dict(sorted(self._errors.items()))


class OwnHealth:
    """The health of the broker that runs here."""

    def __init__(
        self, broker_id: str, failures: FailureTally, ready: Callable[[], bool], clock_difference: Callable[[], int]
    ) -> None:
        """Takes what it is made of.

        Args:
            broker_id: this broker's name.
            failures: what failed since it started.
            ready: whether it can use the database.
            clock_difference: microseconds by which the database's clock is ahead of this machine's.
        """
        self._broker_id = broker_id
        self._failures = failures
        self._ready = ready
        self._clock_difference = clock_difference

    def of(self, broker_id: str) -> BrokerHealth | None:
        """The health of a broker; None: it is another one, which is known by its reports alone."""
        if broker_id != self._broker_id:
            return None
        rounds, errors = self._failures.counts()
        return BrokerHealth(self._ready(), rounds, errors, self._clock_difference())
