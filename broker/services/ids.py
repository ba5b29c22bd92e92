"""New identities."""

from __future__ import annotations

import os
import time

from broker.domain.ids import uuid7


class _Ids:
    """Generates increasing ids, also within a millisecond: they keep the order of messages of one request."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> bytes:
        fresh = int.from_bytes(uuid7(time.time_ns() // 1_000_000, os.urandom(10)), "big")
        self._last = max(fresh, self._last + 1)
        return self._last.to_bytes(16, "big")


_ids = _Ids()


def new_id() -> bytes:
    """A new time-ordered id, greater than all earlier ones."""
    return _ids.new()
