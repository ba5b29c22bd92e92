"""The cost of a filter: chosen by the subscriber, paid by the broker for every message.

Counted in steps of about a microsecond. It is derived from the expression, so that a too expensive one is refused
before its first use, and for each message, to decide when to yield.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.domain.filters.subject import Subject

MAX_COST = 40_000
"""Steps that a filter may take for one message."""
LONGEST_TEXT = 16 * 1024
COMPARISON, LIKE, LIKE_WITH_ANY = 3, 40, 2000
"""Steps of a comparison or a calculation, of a LIKE, and of one with `_`, for texts of the maximum length."""
_MESSAGE = 2


@dataclass(slots=True)
class Cost:
    """Contents of an expression.

    Attributes:
        comparisons: operations that read a value once, also terms of a calculation.
        likes: LIKEs without `_`: a search.
        walks: LIKEs with `_`, which process each character of the text.
    """

    comparisons: int = 0
    likes: int = 0
    walks: int = 0

    @property
    def at_most(self) -> int:
        """Steps for a message with the longest texts."""
        return self.comparisons * COMPARISON + self.likes * LIKE + self.walks * LIKE_WITH_ANY

    def of(self, subject: Subject) -> int:
        """Steps for a message, about."""
        steps = _MESSAGE + self.comparisons
        if self.likes or self.walks:
            keys = sum(map(len, subject.keys))
            longest = max(keys, max(map(len, subject.properties.values()), default=0))
            steps += (self.likes * LIKE + self.walks * LIKE_WITH_ANY) * (longest + 64) // LONGEST_TEXT
        return steps
