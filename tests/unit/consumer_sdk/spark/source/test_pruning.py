"""What filters of a query leave out of reading; they never leave out what may pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from client_core.filters import TagFilter
from consumer_sdk.spark.source.pruning import OUT_OF_ORDER, Pruning, PushFilters

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from consumer_sdk.spark.source.offsets import Offsets

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
START: dict[tuple[str, int], int] = {("a", 0): 10, ("a", 1): 20, ("b", 0): 0}
END: dict[tuple[str, int], int] = {("a", 0): 100, ("a", 1): 200, ("b", 0): 50}


def pruned(*filters: Filter) -> tuple[Offsets, Offsets]:
    pruning = Pruning()
    pruning.add(filters)

    def at(time: datetime) -> Offsets:
        # One message a second, the last ones now.
        return {queue: max(0, end - int((NOW - time).total_seconds())) for queue, end in END.items()}

    return pruning.applied(dict(START), dict(END), at)


@pytest.mark.parametrize(
    ("each", "first", "last"),
    [
        (EqualTo(("offset",), 30), 30, 30),
        (EqualNullSafe(("offset",), 30), 30, 30),
        (GreaterThan(("offset",), 30), 31, None),
        (GreaterThanOrEqual(("offset",), 30), 30, None),
        (LessThan(("offset",), 30), None, 29),
        (LessThanOrEqual(("offset",), 30), None, 30),
        (In(("offset",), (35, 30, None)), 30, 35),
        (In(("offset",), (None,)), 0, -1),
        (Not(EqualTo(("offset",), 30)), None, None),
        (IsNotNull(("offset",)), None, None),
        (EqualTo(("offset", "x"), 30), None, None),
        (EqualTo(("offset",), None), None, None),
    ],
)
def test_offsets(each: Filter, first: int | None, last: int | None) -> None:
    start, end = pruned(each)
    assert start == {queue: max(offset, first or 0) for queue, offset in START.items()}
    assert end == {queue: offset if last is None else min(offset, last + 1) for queue, offset in END.items()}


def test_several_bounds_are_the_tightest() -> None:
    bounds = [GreaterThan(("offset",), number) for number in (3, 30, 7)]
    bounds += [LessThan(("offset",), number) for number in (90, 40, 60)]
    start, end = pruned(*bounds)
    assert set(start.values()) == {31}
    assert set(end.values()) == {40}


@pytest.mark.parametrize(
    ("each", "left"),
    [
        (EqualTo(("topic",), "b"), {("b", 0)}),
        (In(("topic",), ("a", "c", None)), {("a", 0), ("a", 1)}),
        (EqualTo(("topic",), "c"), set()),
        (EqualTo(("queue",), 0), {("a", 0), ("b", 0)}),
        (In(("queue",), (1, 7)), {("a", 1)}),
        (GreaterThan(("queue",), 0), {("a", 1)}),
        (GreaterThanOrEqual(("queue",), 0), set(END)),
        (LessThan(("queue",), 1), {("a", 0), ("b", 0)}),
        (LessThanOrEqual(("queue",), -1), set()),
        (EqualNullSafe(("queue",), 1), {("a", 1)}),
        (Not(EqualTo(("topic",), "b")), set(END)),
        (Not(EqualTo(("queue",), 1)), set(END)),
        (StringStartsWith(("topic",), "b"), set(END)),
        (EqualNullSafe(("topic",), None), set(END)),
    ],
)
def test_topics_and_queues(each: Filter, left: set[tuple[str, int]]) -> None:
    start, end = pruned(each)
    assert set(start) == set(end) == left


def test_topics_that_exclude_each_other() -> None:
    assert pruned(EqualTo(("topic",), "a"), EqualTo(("topic",), "b")) == ({}, {})


def test_times_leave_room_for_a_clock_that_was_set_back() -> None:
    hour = int(OUT_OF_ORDER.total_seconds())
    now = NOW - timedelta(seconds=hour)
    start, end = pruned(GreaterThanOrEqual(("timestamp",), NOW - timedelta(seconds=30) + OUT_OF_ORDER))
    assert start == {("a", 0): 70, ("a", 1): 170, ("b", 0): 20}
    assert end == END
    start, end = pruned(LessThan(("timestamp",), now - timedelta(seconds=20)))
    assert start == START
    assert end == {("a", 0): 80, ("a", 1): 180, ("b", 0): 30}
    assert pruned(EqualTo(("timestamp",), now)) == ({**START, ("b", 0): 0}, END)


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 31, 12), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), 17],  # noqa: DTZ001
)
@pytest.mark.parametrize("kind", [GreaterThan, LessThan])
def test_times_without_a_zone_and_beyond_all_calendars(value: Any, kind: Any) -> None:
    start, end = pruned(kind(("timestamp",), value))
    if not (kind is LessThan and value == datetime.min.replace(tzinfo=UTC)):
        assert (start, end) == (START, END)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("tag",), "paid")], "paid"),
        ([In(("tag",), ("b", "a", None))], "a || b"),
        ([In(("tag",), ("b", "a")), EqualTo(("tag",), "b")], "b"),
        ([EqualTo(("tag",), "a|b")], None),
        ([EqualTo(("tag",), " a")], None),
        ([EqualTo(("tag",), "*")], None),
        ([EqualTo(("tag",), "")], None),
        ([Not(EqualTo(("tag",), "a"))], None),
        ([EqualTo(("tag",), "a"), EqualTo(("tag",), "b")], None),
        ([], None),
    ],
)
def test_tags(filters: list[Filter], wanted: str | None) -> None:
    pruning = Pruning()
    pruning.add(filters)
    assert pruning.wanted == (wanted and TagFilter(wanted))


def test_spark_evaluates_all_of_them_again() -> None:
    filters: list[Filter] = [EqualTo(("tag",), "a"), GreaterThan(("offset",), 3), StringStartsWith(("key",), "k")]
    pruning = Pruning()
    push = PushFilters(pruning)
    assert list(push(filters)) == filters
    assert (pruning.first, pruning.tags) == (4, {"a"})
    # What Spark looks at while its pushdown is off.
    assert push.__func__ is DataSourceReader.pushFilters
