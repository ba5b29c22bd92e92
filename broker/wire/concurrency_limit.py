"""Limits of concurrency."""

from __future__ import annotations

from broker.errors import Overloaded
from broker.wire.budget import RETRY_AFTER


class ConcurrencyLimit:
    """Counts concurrent calls, and refuses excess ones."""

    def __init__(self, what: str, most: int) -> None:
        """Takes its name for error texts, and the limit."""
        self._what = what
        self.most = most
        self.under_way = 0

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self.under_way >= self.most

    def check(self) -> None:
        """Checks whether one more is allowed.

        Raises:
            Overloaded: the limit is reached.
        """
        if self.full:
            raise Overloaded(
                f"{self.under_way} {self._what} are under way here, and no more are taken; come back a little later, or"
                " go to another broker.",
                retry_after=RETRY_AFTER,
            )

    def __enter__(self) -> None:
        """Counts one more.

        Raises:
            Overloaded: the limit is reached.
        """
        self.check()
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        """Counts one less."""
        self.under_way -= 1
