"""Gaps in the offsets of a queue, which restores of the broker's database leave: offsets without messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NO_GAPS", "Gaps", "OffsetGap"]


class OffsetGap(NamedTuple):
    """Offsets without messages.

    Attributes:
        first_offset: Where the queue ended at the moment that was restored. A reader here has missed nothing.
        end_offset: Where it goes on. A reader between them has read messages that no longer exist.
    """

    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps of a queue, ascending; one may begin where another one ends."""

    gaps: tuple[OffsetGap, ...] = ()

    def lost(self, offset: int) -> OffsetGap | None:
        """The gap inside of which an offset is; None if there is none."""
        return next((gap for gap in self.gaps if gap.first_offset < offset < gap.end_offset), None)

    def resume(self, offset: int) -> int:
        """Where a reader at an offset goes on: behind the gaps, if it is in one."""
        for gap in self.gaps:
            if gap.first_offset <= offset < gap.end_offset:
                offset = gap.end_offset
        return offset

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) that are not in gaps."""
        for gap in self.gaps:
            if gap.end_offset <= start:
                continue
            if start < min(end, gap.first_offset):
                yield start, min(end, gap.first_offset)
            start = gap.end_offset
        if start < end:
            yield start, end

    def count(self, start: int, end: int) -> int:
        """How many offsets of [start, end) are not in gaps."""
        return sum(high - low for low, high in self.runs(start, end))

    def behind(self, start: int, end: int, count: int) -> int:
        """The offset behind so many offsets of [start, end); `end` if there are not more."""
        for low, high in self.runs(start, end):
            if count <= high - low:
                return low + count if count else start
            count -= high - low
        return max(start, end)


NO_GAPS = Gaps()
