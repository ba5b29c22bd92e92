"""Gaps in offsets, by what they mean: a queue is a set of offsets with holes in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.gaps import NO_GAPS, Gap, Gaps, by_queue
from broker.domain.topic import QueueState, Topic
from broker.errors import OffsetLost

# Ascending bounds make gaps that do not touch.
GAPS = st.lists(st.integers(0, 40), unique=True, max_size=6).map(
    lambda bounds: [Gap(*pair) for pair in zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False)]
)
OFFSETS = st.integers(0, 45)


def there(gaps: list[Gap], offset: int) -> bool:
    return not any(gap.first <= offset < gap.end for gap in gaps)


@given(GAPS, OFFSETS, OFFSETS)
def test_they_are_holes(gaps: list[Gap], start: int, end: int) -> None:
    known = Gaps(reversed(gaps))
    assert list(known) == gaps
    assert known.count(start, end) == sum(there(gaps, offset) for offset in range(start, end))
    first = next(offset for offset in range(start, 100) if there(gaps, offset))
    assert known.resume(start) == first
    run = next((offset for offset in range(first, end) if not there(gaps, offset)), max(end, 0))
    assert known.run_end(first, end) == (run if end > first else end)


@given(GAPS, OFFSETS)
def test_an_offset_is_lost_between_the_ends_of_a_gap(gaps: list[Gap], offset: int) -> None:
    lost = Gaps(gaps).lost(offset)
    assert lost == next((gap for gap in gaps if gap.first < offset < gap.end), None)


def test_gaps_belong_to_queues() -> None:
    found = by_queue([(7, 3, 9), (8, 1, 2), (7, 0, 1)])
    assert {queue: list(gaps) for queue, gaps in found.items()} == {7: [(0, 1), (3, 9)], 8: [(1, 2)]}
    topic = Topic(1, "orders", 1, 1, (7, 9), gaps=found)
    assert list(topic.gaps_of(7)) == [(0, 1), (3, 9)]
    assert topic.gaps_of(9) is NO_GAPS


def test_a_lost_offset_is_refused_with_the_one_to_go_on_from() -> None:
    topic = Topic(1, "orders", 1, 1, (7, 8), gaps=by_queue([(8, 3, 9)]))
    for offset in (0, 3, 9, 12):
        topic.check_offset(1, offset)
    topic.check_offset(0, 5)
    with pytest.raises(OffsetLost, match=r"queue 1 of 'orders' ended at 3.*Go on at 9") as refused:
        topic.check_offset(1, 5, "to.offset")
    assert (refused.value.reason, refused.value.field, refused.value.first) == ("OFFSET_LOST", "to.offset", 9)


def test_lag_and_what_is_kept_are_counted_around_gaps() -> None:
    state = QueueState("orders", 0, 1, 12, 2, in_flight=2, gaps=Gaps([Gap(3, 9)]))
    assert (state.kept, state.lag) == (5, 6)
