"""Filter results of the messages of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wanted(NamedTuple):
    """A matching message, with the fields needed to deliver it."""

    offset: int
    size: int
    message_group: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """The matching messages of a queue at [first, end)."""

    first: int
    end: int
    wanted: Sequence[Wanted]

    def since(self, offset: int) -> Sequence[Wanted] | None:
        """The matching messages from an offset on; None if they were not evaluated."""
        if not self.first <= offset < self.end:
            return None
        return [each for each in self.wanted if each.offset >= offset]
