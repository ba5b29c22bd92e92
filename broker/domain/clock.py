"""The clock, which is always injected."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The clock of leases, checks and retention."""

    def now(self) -> int:
        """Microseconds since 1970 (UTC), of the database's clock."""
        ...
