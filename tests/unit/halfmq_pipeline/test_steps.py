"""The steps of figures over time: short enough to see what happened, and few enough to be looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from halfmq_pipeline.reports.steps import Steps

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def around(*times: datetime, finest: timedelta = SECOND) -> Steps:
    return Steps.around(times, NOON - DAY, NOON, least=30, most=100, finest=finest)


@pytest.mark.parametrize(
    ("length", "width"),
    [
        (timedelta(microseconds=1), SECOND),
        (90 * SECOND, SECOND),
        (100 * SECOND, 5 * SECOND),
        (timedelta(hours=3), 5 * MINUTE),
        (DAY, 15 * MINUTE),
    ],
)
def test_steps_are_as_short_as_a_hundred_of_them_can_be(length: timedelta, width: timedelta) -> None:
    first = NOON - DAY / 2 if length < DAY / 2 else NOON - DAY
    last = min(first + length, NOON - timedelta(microseconds=1))
    steps = around(last, first)
    assert steps.width == width
    assert 30 <= len(steps) <= 100
    starts = steps.starts()
    assert starts[0] <= first
    assert last < starts[-1] + width
    assert len(starts) == len(steps)
    # Nothing is shown for long in which nothing was: as much on either side as makes 30 steps.
    assert len(steps) == 30 or (first - starts[0] < width and starts[-1] <= last)


def test_a_single_verdict_stands_in_the_middle() -> None:
    steps = around(NOON - DAY / 2)
    assert (steps.width, len(steps)) == (SECOND, 30)
    assert steps.number(NOON - DAY / 2) - steps.first == 14


def test_steps_stay_in_the_time_that_was_asked_for() -> None:
    steps = around(NOON - SECOND / 2)
    assert (steps.starts()[0], steps.starts()[-1]) == (NOON - 30 * SECOND, NOON - SECOND)
    assert around(NOON - DAY).starts() == [NOON - DAY + number * SECOND for number in range(30)]
    short = Steps.around([NOON], NOON - 3 * SECOND, NOON + SECOND, least=30, most=100, finest=SECOND)
    assert short == Steps.between(NOON - 3 * SECOND, NOON + SECOND, SECOND)


def test_where_nothing_happened_all_of_the_time_is_seen() -> None:
    assert around() == Steps.between(NOON - DAY, NOON, 15 * MINUTE)


def test_no_step_is_shorter_than_what_is_known() -> None:
    assert around(NOON - DAY / 2, finest=MINUTE).width == MINUTE


def test_steps_of_a_given_length_hold_all_of_the_time() -> None:
    steps = Steps.between(NOON + SECOND, NOON + 2 * MINUTE + SECOND, MINUTE)
    assert steps.starts() == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    assert len(Steps.between(NOON, NOON + 2 * MINUTE, MINUTE)) == 2


def test_years_are_seen_in_steps_of_four_weeks() -> None:
    steps = Steps.around([], NOON - 9999 * DAY, NOON, least=30, most=100, finest=SECOND)
    assert steps.width == timedelta(days=28)
