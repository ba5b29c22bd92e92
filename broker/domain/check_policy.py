"""When the broker checks a transaction, and when it stops.

RocketMQ's rule and defaults: the first check after 6 s (later if the producer requested it, never earlier), then
one every 30 s, 15 at most. After the last one went unanswered for one more interval, the transaction is parked.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.errors import ConfigurationError

SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Times of the check-back.

    Attributes:
        first_check: microseconds from prepare to the first check.
        interval: microseconds from one check to the next.
        max_checks: checks before a transaction is parked.
    """

    first_check: int = 6 * SECOND
    interval: int = 30 * SECOND
    max_checks: int = 15

    def __post_init__(self) -> None:
        """Refuses times that would check without pause, or never."""
        if self.first_check < 0:
            raise ConfigurationError("first_check must be 0 s or more.", field="first_check")
        if self.interval < 10_000:
            raise ConfigurationError("check_interval must be at least 0.01 s.", field="check_interval")
        if not 1 <= self.max_checks <= 1000:
            raise ConfigurationError("max_checks must be between 1 and 1000.", field="max_checks")

    def first_due(self, prepared_at: int, requested_delay: int = 0) -> int:
        """When the first check of a transaction is due."""
        return prepared_at + max(self.first_check, requested_delay)

    def next_due(self, checked_at: int) -> int:
        """When the check after one sent at `checked_at` is due, or, after the last one, the parking."""
        return checked_at + self.interval

    def limit_for(self, own_limit: int | None) -> int:
        """How many checks a transaction may have; an operator can have granted it more."""
        return own_limit if own_limit else self.max_checks
