"""Budget of bytes of requests in flight."""

from __future__ import annotations

from typing import Self

from broker.errors import Overloaded

RETRY_AFTER = 0.2
"""Seconds after which a refused client may try again."""
SMALL = 16 * 1024
"""Bytes of a request that is always accepted: health checks, admin calls, acknowledgements, verdicts."""


class Budget:
    """Bytes of all requests in flight."""

    def __init__(self, most: int) -> None:
        """Takes the limit."""
        self.most = most
        self.taken = 0

    def take(self, size: int) -> None:
        """Acquires bytes.

        Raises:
            Overloaded: the limit is reached; a single request is accepted whatever its size.
        """
        if not self.has_room(size):
            raise Overloaded(
                f"The requests under way here have {self.taken} bytes, and {self.most} are allowed; come back a little"
                " later, or go to another broker.",
                retry_after=RETRY_AFTER,
            )
        self.taken += size

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be acquired; a single request always may."""
        return not self.taken or self.taken + size <= self.most

    def give_back(self, size: int) -> None:
        """Releases bytes."""
        self.taken -= size


class Share:
    """One call's share of a budget, until it ends."""

    __slots__ = ("_budget", "_of_client", "_size")

    def __init__(self, budget: Budget) -> None:
        """Starts empty."""
        self._budget = budget
        self._of_client: Budget | None = None
        self._size = 0

    def count_for(self, client: Budget) -> None:
        """Counts for the budget of a client, too, from now on."""
        client.taken += self._size
        self._of_client = client

    def grow(self, size: int) -> None:
        """Acquires more.

        Raises:
            Overloaded: the limit is reached, of all or of the client.
        """
        self._budget.take(size)
        if self._of_client is not None:
            try:
                self._of_client.take(size)
            except Overloaded:
                self._budget.give_back(size)
                raise
        self._size += size

    def __enter__(self) -> Self:
        """Starts empty."""
        return self

    def __exit__(self, *_: object) -> None:
        """Releases all of it."""
        self._budget.give_back(self._size)
        if self._of_client is not None:
            self._of_client.give_back(self._size)
        self._size = 0
