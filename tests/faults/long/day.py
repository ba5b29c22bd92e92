"""A day that takes an hour, or some seconds: for how long brokers keep what, and how often they look."""

from __future__ import annotations

from dataclasses import dataclass

HOURS = 24.0
KEPT_HOURS, HISTORY_HOURS = 2.0, 1.0
"""Of the day: messages, op records and audit records; records of deliveries, and half messages of a sink."""
LEAST_KEPT = 12.0
"""Seconds: what is read and judged has to be there until it was read."""
SWEEP = 30.0
"""Seconds between two rounds of retention, or a tenth of what they keep."""
PATIENCE = 30.0
"""Seconds of a call: nobody is killed here, so each one is answered."""


@dataclass(frozen=True, slots=True)
class Day:
    """Takes the seconds of a day."""

    seconds: float

    @property
    def kept(self) -> float:
        """Seconds that messages, op records and audit records are kept."""
        return max(LEAST_KEPT, self.seconds * KEPT_HOURS / HOURS)

    @property
    def history(self) -> float:
        """Seconds that records of deliveries, and half messages of sinks, are kept."""
        return self.kept * HISTORY_HOURS / KEPT_HOURS

    @property
    def sweep(self) -> float:
        """Seconds between two rounds of retention."""
        return min(SWEEP, self.kept / 10)

    @property
    def hour(self) -> float:
        """Seconds of an hour of this day."""
        return self.kept / KEPT_HOURS

    def settings(self) -> dict[str, object]:
        """Options of `halfmq serve`."""
        return {
            "retention_hours": self.kept / 3600,
            "history_hours": self.history / 3600,
            "sink_hours": self.history / 3600,
            "audit_days": self.kept / 86_400,
        }
