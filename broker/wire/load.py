"""How much may be in flight at a time."""

from __future__ import annotations

from broker.errors import Overloaded
from broker.wire.budget import RETRY_AFTER


class Load:
    """Counts what is in flight, and refuses what is too much."""

    def __init__(self, what: str, most: int) -> None:
        """Takes its name for people, and how many there may be."""
        self._what = what
        self._most = most
        self.under_way = 0

    @property
    def full(self) -> bool:
        """Whether there is no room for one more."""
        return self.under_way >= self._most

    def check(self) -> None:
        """Looks whether there is room for one more.

        Raises:
            Overloaded: there is none.
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
            Overloaded: there are too many already.
        """
        self.check()
        self.under_way += 1

    def __exit__(self, *_: object) -> None:
        """Counts one less."""
        self.under_way -= 1
