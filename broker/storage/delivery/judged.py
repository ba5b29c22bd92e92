"""What filters said of the messages of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Wanted(NamedTuple):
    """A message that a filter wants, as far as it must be known to hand it out."""

    offset: int
    size: int
    message_group: str | None


@dataclass(frozen=True, slots=True)
class Judged:
    """What a filter said of the messages of a queue at [first, end): those that it wants."""

    first: int
    end: int
    wanted: Sequence[Wanted]

    def since(self, offset: int) -> Sequence[Wanted] | None:
        """What is wanted from an offset on; None where it was not judged."""
        if not self.first <= offset < self.end:
            return None
        return [each for each in self.wanted if each.offset >= offset]
