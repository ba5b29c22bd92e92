"""What a filter costs: whoever subscribes chooses it, and the broker pays for it with every message.

Counted in steps of about a microsecond. It is worked out from the expression, so that one that is too dear is refused
before it judges anything, and for each message, so that it is known when to pause.
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
"""Steps of a comparison or a calculation, of a LIKE, and of one with `_`, for the longest texts that there are."""
_MESSAGE = 2


@dataclass(slots=True)
class Cost:
    """What is in an expression.

    Attributes:
        comparisons: all that looks at a value once, also terms of a calculation.
        likes: LIKEs without `_`: a search.
        walks: LIKEs with `_`, which look at each character of the text by itself.
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
