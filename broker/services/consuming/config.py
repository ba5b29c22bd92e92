"""Bounds of delivery."""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import InvalidArgument

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """Bounds of delivery; times in microseconds.

    Attributes:
        lease_time: duration of a lease, if the consumer names none.
        shortest_lease, longest_lease: bounds of the duration that it may name.
        batch_messages, batch_bytes: limits of one read from the database.
        batch_rows: the same by columns, if messages are small.
        longest_wait: how long a pull may wait for its first message.
        has_cells: whether groups may move to another cell.
    """

    lease_time: int = 30 * SECOND
    shortest_lease: int = SECOND // 10
    longest_lease: int = 12 * 3600 * SECOND
    batch_messages: int = 512
    batch_bytes: int = 1024 * 1024
    batch_rows: int = 2048
    longest_wait: int = 60 * SECOND
    has_cells: bool = False

    def lease_time_of(self, wanted: int | None, field: str) -> int:
        """The duration of a lease; None stands for the default.

        Raises:
            InvalidArgument: it is out of bounds.
        """
        if wanted is None:
            return self.lease_time
        if not self.shortest_lease <= wanted <= self.longest_lease:
            raise InvalidArgument(
                f"A lease lasts between {self.shortest_lease / SECOND:g} s and {self.longest_lease // SECOND} s.",
                field=field,
            )
        return wanted

    def seconds_to_wait(self, wait: int) -> float:
        """Seconds that a caller may wait.

        Raises:
            InvalidArgument: too many, or negative.
        """
        if not 0 <= wait <= self.longest_wait:
            raise InvalidArgument(f"Wait at most {self.longest_wait // SECOND} s.", field="wait")
        return wait / SECOND
