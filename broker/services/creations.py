"""How many groups each client has made by naming them: the number of all is limited, and one must not use it up."""

from __future__ import annotations

import time
from collections import OrderedDict

from broker.errors import Overloaded

WINDOW = 3600.0
"""Seconds in which they are counted together."""
MOST_NAMES = 10_000


class Creations:
    """Counts groups that come to be because a client names them; those that operators create are not counted."""

    def __init__(self, most: int) -> None:
        """Takes how many one client may make in an hour; 0: any number."""
        self._most = most
        self._made: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, client: str) -> None:
        """Lets a client make one more, and counts it.

        Args:
            client: the name that it is known by; empty: it is not counted.

        Raises:
            Overloaded: it has made too many.
        """
        if not client or not self._most:
            return
        now = time.monotonic()
        began, count = self._made.pop(client, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        self._made[client] = began, count + (count < self._most)
        if len(self._made) > MOST_NAMES:
            self._made.popitem(last=False)
        if count >= self._most:
            raise Overloaded(
                f"You have made {count} groups in an hour by naming them, and no more are made for one client: use the"
                " same names again, or create them with `halfmq admin group create`.",
                retry_after=max(1.0, began + WINDOW - now),
            )

    def not_made(self, client: str) -> None:
        """Counts one less: the one that was counted last was not made."""
        if client in self._made:
            began, count = self._made[client]
            self._made[client] = began, max(0, count - 1)
