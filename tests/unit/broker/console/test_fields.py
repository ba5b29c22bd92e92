"""What forms and addresses say is read as a whole, or refused with the field's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.console.fields import LARGEST_QUEUE, age_of, choice_of, filter_of, number_of, position_of, time_of
from broker.errors import InvalidArgument
from halfmq.v1 import message_pb2

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31", "2026-01-31T00:00:00Z"),
        (" 2026-01-31 12:00 ", "2026-01-31T12:00:00Z"),
        ("2026-01-31 12:00:05", "2026-01-31T12:00:05Z"),
        ("2026-01-31T12:00:05.250Z", "2026-01-31T12:00:05.250Z"),
    ],
)
def test_a_time_is_in_utc_to_the_day_minute_or_finer(text: str, time: str) -> None:
    found = time_of(text, "from")
    assert found is not None
    assert found.ToJsonString() == time


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("30", 30), ("30s", 30), ("5min", 300), ("5 m", 300), ("2h", 7200), ("1d", 86_400)]
)
def test_an_age_has_a_unit(text: str, seconds: int) -> None:
    assert age_of(text, "older") == seconds


def test_a_number_may_be_missing() -> None:
    assert [number_of(text, "offset") for text in ("", " ", "0", " 17 ")] == [None, None, 0, 17]


def test_a_position_is_an_end_a_time_or_an_offset() -> None:
    assert position_of("latest", "to").boundary == message_pb2.BOUNDARY_LATEST
    assert position_of("2026-01-31 12:00", "to").WhichOneof("position") == "time"
    assert position_of("0", "to").WhichOneof("position") == "offset"


def test_a_filter_is_by_tags_or_by_a_condition() -> None:
    assert filter_of("", "") is None
    assert filter_of("paid", "") == message_pb2.Filter(tags="paid")
    assert filter_of("", "a = 1") == message_pb2.Filter(sql="a = 1")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (time_of, "soon"),
        (time_of, "2026-13-01"),
        (time_of, "2026-01-31T12:00:00+02:00"),
        (age_of, "soon"),
        (age_of, "-5min"),
        (age_of, "5 weeks"),
        (age_of, "1" * 10),
        (number_of, "-1"),
        (number_of, "1e3"),
        (number_of, "\u0663"),
        (number_of, "1" * 19),
        (position_of, ""),
        (position_of, "-1"),
        (position_of, "the end"),
    ],
)
def test_what_is_none_is_refused_with_the_name_of_its_field(read: Callable[[str, str], Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(text, "its-field")
    assert refused.value.field == "its-field"


def test_a_queue_has_a_number_that_fits() -> None:
    assert number_of(str(LARGEST_QUEUE), "queue", LARGEST_QUEUE) == LARGEST_QUEUE
    with pytest.raises(InvalidArgument):
        number_of(str(LARGEST_QUEUE + 1), "queue", LARGEST_QUEUE)


def test_two_filters_are_refused() -> None:
    with pytest.raises(InvalidArgument) as refused:
        filter_of("paid", "a = 1")
    assert refused.value.field == "sql"


def test_what_is_no_choice_is_refused_with_the_choices() -> None:
    choices = {"": 0, "oldest": 1, "newest": 2}
    assert [choice_of(text, choices, "order") for text in ("", "newest")] == [0, 2]
    with pytest.raises(InvalidArgument, match="oldest or newest"):
        choice_of("random", choices, "order")
    with pytest.raises(InvalidArgument):
        choice_of("", {"commit": 1}, "resolution")
