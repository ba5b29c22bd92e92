"""What is left of Kafka's partitions: records, not the marks at the ends of transactions, which have offsets too."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Remaining"]

Place = TypeVar("Place", bound=Hashable)


class Remaining(Generic[Place]):
    """Counts, by partition, the offsets behind a position that may be those of records.

    Where Kafka's client has come to the end of what may be read, nothing up to there is a record that is left, once
    all that came before is carried. What is behind that end waits for a transaction that is open.
    """

    def __init__(self) -> None:
        """Knows of no partition."""
        self._came: dict[Place, int] = {}
        self._ends: dict[Place, tuple[int, int]] = {}

    def came(self, place: Place, offset: int) -> None:
        """A record came."""
        self._came[place] = max(offset + 1, self._came.get(place, 0))

    def ended(self, place: Place, offset: int) -> None:
        """The client has come to the end: this is the next offset."""
        self._ends[place] = self._came.get(place, 0), offset

    def forget(self, place: Place) -> None:
        """Another replica reads it."""
        self._came.pop(place, None)
        self._ends.pop(place, None)

    def left(self, place: Place, position: int, end: int) -> int:
        """How many offsets are left.

        Args:
            place: the partition.
            position: the offset behind what is carried.
            end: the offset behind all that the partition holds.
        """
        came, reached = self._ends.get(place, (0, 0))
        return max(0, end - (max(position, reached) if position >= came else position))
