"""Gaps in the offsets of a queue: offsets that may have been given in a time which a restore of the database undid.

After a restore the next offset of each queue jumps, so that no offset is ever given twice. In a gap [first, end) there
is no message, and there never will be one; `first` is where the queue ended at the restored moment, so a reader at
`first` has missed nothing, and goes on at `end`. A reader inside of the gap has read messages that no longer exist.

A gap may begin where another one ends: a queue was restored twice, and got no message between. That offset is valid.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class Gap(NamedTuple):
    """Offsets without messages: [first, end)."""

    first: int
    end: int


class Gaps:
    """The gaps of a queue."""

    __slots__ = ("_ends", "_gaps")

    def __init__(self, gaps: Iterable[Gap] = ()) -> None:
        """Takes them in any order."""
        self._gaps = sorted(gaps)
        self._ends = [gap.end for gap in self._gaps]

    def __iter__(self) -> Iterator[Gap]:
        """By their offsets."""
        return iter(self._gaps)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._gaps)

    def _from(self, offset: int) -> Gap | None:
        """The first gap that ends behind an offset."""
        index = bisect_right(self._ends, offset)
        return self._gaps[index] if index < len(self._gaps) else None

    def resume(self, offset: int) -> int:
        """Where a reader at an offset goes on: behind the gaps, if there is one at the offset."""
        gap = self._from(offset) if self._gaps else None
        while gap is not None and gap.first <= offset:
            offset = gap.end
            gap = self._from(offset)
        return offset

    def run_end(self, offset: int, end: int) -> int:
        """The end of the consecutive offsets from an offset on, which is not in a gap; `end` at most."""
        gap = self._from(offset) if self._gaps else None
        return min(end, gap.first) if gap is not None else end

    def lost(self, offset: int) -> Gap | None:
        """The gap inside of which an offset is: whoever has got this far has read messages that no longer exist."""
        gap = self._from(offset) if self._gaps else None
        return gap if gap is not None and gap.first < offset else None

    def count(self, start: int, end: int) -> int:
        """How many offsets in [start, end) are not in gaps; 0 if it is empty."""
        if start >= end:
            return 0
        return end - start - sum(max(0, min(end, gap.end) - max(start, gap.first)) for gap in self._gaps)


NO_GAPS = Gaps()


def by_queue(rows: Iterable[tuple[int, int, int]]) -> Mapping[int, Gaps]:
    """The gaps of queues that have some, from queue ids with the first offset and the end of a gap."""
    found: dict[int, list[Gap]] = {}
    for queue_id, first, end in rows:
        found.setdefault(queue_id, []).append(Gap(first, end))
    return {queue_id: Gaps(gaps) for queue_id, gaps in found.items()}
