"""Limits how much is evaluated before yielding to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.domain.filters.filter import Filter
    from broker.domain.filters.subject import Subject

JUDGED_AT_ONCE = 50_000
"""Steps after which evaluation yields to others; at least one message is evaluated."""


class Steps:
    """Budget of steps before yielding to others; at least one message."""

    def __init__(self, steps: int = JUDGED_AT_ONCE) -> None:
        """Takes a number of steps."""
        self._left = steps

    @property
    def spent(self) -> bool:
        """Whether to stop."""
        return self._left <= 0

    def judge(self, wanted: Filter, subject: Subject) -> bool:
        """Whether a message matches a filter."""
        self._left -= wanted.cost.of(subject)
        return wanted.matches(subject)
