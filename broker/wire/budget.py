"""Bytes of requests that are here or on their way: how many there may be."""

from __future__ import annotations

from typing import Self

from broker.errors import Overloaded

RETRY_AFTER = 0.2
"""Seconds after which a refused client may try again."""
SMALL = 16 * 1024
"""Bytes of a request that is always taken: health checks, operators' calls, acknowledgements, verdicts."""


class Budget:
    """Bytes of requests that are here or on their way, all together."""

    def __init__(self, most: int) -> None:
        """Takes how many there may be."""
        self.most = most
        self.taken = 0

    def take(self, size: int) -> None:
        """Takes bytes.

        Raises:
            Overloaded: there are too many already; a request that is alone is taken whatever its size.
        """
        if self.taken and self.taken + size > self.most:
            raise Overloaded(
                f"The requests under way here have {self.taken} bytes, and {self.most} are allowed; come back a little"
                " later, or go to another broker.",
                retry_after=RETRY_AFTER,
            )
        self.taken += size

    def give_back(self, size: int) -> None:
        """Gives bytes back."""
        self.taken -= size


class Share:
    """What one call takes of a budget, until it ends."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: Budget) -> None:
        """Takes nothing yet."""
        self._budget = budget
        self._size = 0

    def grow(self, size: int) -> None:
        """Takes more.

        Raises:
            Overloaded: there is no room.
        """
        self._budget.take(size)
        self._size += size

    def __enter__(self) -> Self:
        """Takes nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gives all of it back."""
        self._budget.give_back(self._size)
        self._size = 0
