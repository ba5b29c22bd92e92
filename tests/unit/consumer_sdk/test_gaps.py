"""Gaps in offsets, for readers that keep their own position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumer_sdk.reading import NO_GAPS, Gaps, OffsetGap, QueueOffset

# Ascending bounds make gaps that do not touch.
GAPS = st.lists(st.integers(0, 40), unique=True, max_size=6).map(
    lambda bounds: Gaps(
        tuple(OffsetGap(*pair) for pair in zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False))
    )
)
OFFSETS = st.integers(0, 45)


def there(known: Gaps, offset: int) -> bool:
    return not any(gap.first_offset <= offset < gap.end_offset for gap in known.gaps)


@given(GAPS, OFFSETS, OFFSETS, st.integers(0, 50))
def test_they_are_holes(known: Gaps, start: int, end: int, count: int) -> None:
    offsets = [offset for offset in range(start, end) if there(known, offset)]
    runs = list(known.runs(start, end))
    assert [offset for low, high in runs for offset in range(low, high)] == offsets
    assert all(low < high for low, high in runs)
    assert known.count(start, end) == len(offsets)
    assert known.resume(start) == next(offset for offset in range(start, 100) if there(known, offset))
    behind = known.behind(start, end, count)
    assert known.count(start, behind) == min(count, len(offsets))
    assert start <= behind <= max(start, end)


@given(GAPS, OFFSETS)
def test_an_offset_is_lost_between_the_ends_of_a_gap(known: Gaps, offset: int) -> None:
    lost = known.lost(offset)
    assert (lost is not None) == any(gap.first_offset < offset < gap.end_offset for gap in known.gaps)
    assert lost is None or lost.first_offset < offset < lost.end_offset


def test_a_queue_counts_around_its_gaps() -> None:
    queue = QueueOffset(0, 0, 12, 0, 0, gaps=Gaps((OffsetGap(3, 9),)))
    assert queue.count(2, 12) == 4
    assert QueueOffset(0, 0, 12, 0, 0).gaps is NO_GAPS
