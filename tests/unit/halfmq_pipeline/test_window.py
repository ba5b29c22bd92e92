"""Which times are judged and read; no Spark, no broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from consumer_sdk.errors import ConfigurationError
from consumer_sdk.reconciliation import Window

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def test_a_window_of_the_past_is_judged_whole() -> None:
    window = Window.of(NOON - HOUR, NOON, MINUTE, NOON + MINUTE)
    assert (window.start, window.end, window.notes) == (NOON - HOUR, NOON, ())
    assert window.rows == (NOON - HOUR - MINUTE, NOON + MINUTE)
    assert window.messages_since == NOON - HOUR - 2 * MINUTE


def test_what_is_young_is_not_judged() -> None:
    window = Window.of(NOON - HOUR, NOON, MINUTE, NOON + MINUTE / 2)
    assert (window.start, window.end) == (NOON - HOUR, NOON - MINUTE / 2)
    assert window.notes == ("What is younger than 60 s is not judged: the window ends at 2026-01-31 11:59:30 UTC.",)
    # The rows that messages are matched with are there by now.
    assert window.rows[1] == NOON + MINUTE / 2


def test_without_grace_a_window_ends_now() -> None:
    window = Window.of(NOON - HOUR, NOON + HOUR, timedelta(0), NOON)
    assert window.end == NOON
    assert window.rows == (NOON - HOUR, NOON)


@pytest.mark.parametrize(
    ("since", "start", "notes"),
    [
        (None, NOON - HOUR, 0),
        (NOON - HOUR - MINUTE, NOON - HOUR, 0),
        (NOON - HOUR, NOON - HOUR + MINUTE, 1),
        (NOON - 2 * MINUTE, NOON - MINUTE, 1),
    ],
)
def test_rows_whose_messages_may_be_gone_are_not_judged(since: datetime | None, start: datetime, notes: int) -> None:
    window = Window.of(NOON - HOUR, NOON, MINUTE, NOON + HOUR).kept(since)
    assert (window.start, window.end, len(window.notes)) == (start, NOON, notes)


def test_both_ends_are_told() -> None:
    window = Window.of(NOON - HOUR, NOON, MINUTE, NOON).kept(NOON - HOUR)
    assert window.notes == (
        "What is younger than 60 s is not judged: the window ends at 2026-01-31 11:59:00 UTC.",
        "Retention took messages up to 2026-01-31 11:00:00 UTC: the window begins at 2026-01-31 11:01:00 UTC.",
    )


@pytest.mark.parametrize(
    ("start", "end", "grace", "words"),
    [
        (NOON, NOON, MINUTE, "must begin before it ends"),
        (NOON, NOON - HOUR, MINUTE, "must begin before it ends"),
        (NOON - HOUR, NOON, -MINUTE, "grace must not be negative"),
        (NOON - MINUTE, NOON, MINUTE, r"nothing of the window can be judged\. What is younger than 60 s"),
        (NOON.replace(tzinfo=None), NOON, MINUTE, "need a time zone"),
    ],
)
def test_what_is_no_window(start: datetime, end: datetime, grace: timedelta, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Window.of(start, end, grace, NOON)


def test_nothing_left_by_retention() -> None:
    with pytest.raises(ConfigurationError, match=r"nothing of the window can be judged\. Retention took"):
        Window.of(NOON - HOUR, NOON, MINUTE, NOON + HOUR).kept(NOON)
