"""Messages that are sent for rows without one."""

from __future__ import annotations

import uuid
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["BUSINESS_TIME", "REPAIRED_BY", "business_time_text", "repair_id"]

BUSINESS_TIME = "business_time"
"""Property with the business time of a message, if it was sent at another time."""
REPAIRED_BY = "repaired_by"
"""Property that names what sent it in place of its producer."""

_NAMESPACE = uuid.UUID("6e1f3c5a-3b0e-5d43-9d0e-6a6c1b7a2f18")


def repair_id(topic: str, tag: str | None, key: str) -> str:
    """The id of a message that a repair sends: a UUID of version 5, the same in every run.

    A broker accepts an id once, so repairs may be run again, at once, or after they were killed.
    """
    return str(uuid.uuid5(_NAMESPACE, "\n".join((topic, tag or "", key))))


def business_time_text(time: datetime) -> str:
    """The value of BUSINESS_TIME."""
    return time.astimezone(UTC).isoformat()
