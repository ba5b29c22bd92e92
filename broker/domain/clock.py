"""Where time comes from: always from outside."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Returns the time that leases, checks and retention go by."""

    def now(self) -> int:
        """Microseconds since 1970 (UTC), of the database's clock."""
        ...
