"""Queries of a database server, by its own counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.storage.engine.connection import Database

if TYPE_CHECKING:
    from collections.abc import Callable

_ASKED = "SHOW GLOBAL STATUS WHERE Variable_name = 'Questions' OR Variable_name LIKE 'Com\\_%'"
# One sample a second, to find the peak.
_LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Observed:
    """Counts over some time.

    Attributes:
        queries_per_s: queries of the server, without those of this observer; None if there is no server.
        peak_per_s: the maximum in one second.
        statements_per_s: the same by type of statement, if there were any.
        cpu_percent: processor time of the observed process, in percent of one processor.
    """

    queries_per_s: float | None
    peak_per_s: float | None
    statements_per_s: dict[str, float]
    cpu_percent: float


class Observer:
    """Counts the server's queries, for all of its clients: nothing else should use it meanwhile."""

    def __init__(self, url: str) -> None:
        """Connects."""
        self._database = Database(url)
        self._session = self._database.session()
        self._counts = not self._database.dialect.one_writer

    def close(self) -> None:
        """Closes the connection."""
        self._database.release(self._session)
        self._database.close()

    def observe(self, seconds: float, cpu_seconds: Callable[[], float]) -> Observed:
        """Observes for some time; `cpu_seconds` returns the processor time used so far."""
        start, cpu = time.monotonic(), cpu_seconds()
        before = last = self._look()
        looks = 0
        peak = 0.0
        last_at = start
        while (left := start + seconds - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_EVERY))
            now = self._look()
            looks += 1
            # Each sample is a query, too.
            now_at = time.monotonic()
            peak = max(peak, (now["Questions"] - last["Questions"] - 1) / (now_at - last_at))
            last, last_at = now, now_at
        taken = last_at - start
        cpu_percent = round(100 * (cpu_seconds() - cpu) / taken, 1)
        if not self._counts:
            return Observed(None, None, {}, cpu_percent)
        asked = {name: last[name] - before.get(name, 0) for name in last}
        asked["Questions"] -= looks
        asked["Com_show_status"] -= looks
        kinds = {name.removeprefix("Com_"): count for name, count in asked.items() if name != "Questions" and count}
        return Observed(
            round(asked["Questions"] / taken, 1),
            round(peak, 1),
            {name: round(count / taken, 2) for name, count in sorted(kinds.items(), key=lambda each: -each[1])},
            cpu_percent,
        )

    def _look(self) -> dict[str, int]:
        if not self._counts:
            return {"Questions": 0}
        return {str(name): int(value) for name, value in self._session.fetch(_ASKED)}
