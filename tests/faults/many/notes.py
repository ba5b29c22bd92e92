"""What clients note about time: how long sends take, how late messages are, and how long a client got nothing done."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from statistics import quantiles
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Percentiles(NamedTuple):
    """In milliseconds; None without anything to count."""

    p50: float | None
    p99: float | None
    worst: float | None


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Of some times in seconds."""
    if len(seconds) < 2:
        return Percentiles(None, None, None)
    cuts = quantiles(seconds, n=100)
    return Percentiles(*(round(1000 * each, 1) for each in (cuts[49], cuts[98], max(seconds))))


class Notes:
    """Taken by all clients."""

    def __init__(self) -> None:
        self.sends: list[float] = []
        self.deliveries: defaultdict[str, list[float]] = defaultdict(list)
        self._pauses: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def sent(self, seconds: float) -> None:
        with self._lock:
            self.sends.append(seconds)

    def delivered(self, kind: str, seconds: float) -> None:
        with self._lock:
            self.deliveries[kind].append(seconds)

    def paused(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._pauses[kind] = max(self._pauses[kind], seconds)

    def longest_pauses(self) -> dict[str, float]:
        """By the kind of client, in seconds."""
        with self._lock:
            return {kind: round(seconds, 2) for kind, seconds in sorted(self._pauses.items())}


class Pause:
    """How long one client has got nothing done, although it tried."""

    def __init__(self, notes: Notes, kind: str) -> None:
        self._notes = notes
        self._kind = kind
        self._since: float | None = None

    def begin(self) -> None:
        """It makes a call."""
        if self._since is None:
            self._since = time.monotonic()

    def end(self, waited: float = 0.0) -> None:
        """A call was answered, which was asked to wait for so many seconds."""
        if self._since is not None:
            self._notes.paused(self._kind, max(0.0, time.monotonic() - self._since - waited))
            self._since = None
