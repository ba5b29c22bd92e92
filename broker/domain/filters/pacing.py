"""How much is judged before others have their turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.domain.filters.filter import Filter
    from broker.domain.filters.subject import Subject

JUDGED_AT_ONCE = 50_000
"""Steps after which whoever judges messages lets others go on; one message is judged always."""


class Steps:
    """What may be judged before others have their turn; one message always."""

    def __init__(self, steps: int = JUDGED_AT_ONCE) -> None:
        """Takes a number of steps."""
        self._left = steps

    @property
    def spent(self) -> bool:
        """Whether to stop."""
        return self._left <= 0

    def judge(self, wanted: Filter, subject: Subject) -> bool:
        """Whether a filter wants a message."""
        self._left -= wanted.cost.of(subject)
        return wanted.matches(subject)
