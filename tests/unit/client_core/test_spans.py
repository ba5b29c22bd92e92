"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from client_core.spans import parse_span, span_text


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("0s", timedelta(0)),
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("2w", timedelta(days=14)),
        ("250ms", timedelta(milliseconds=250)),
        ("1m5ms3us", timedelta(minutes=1, milliseconds=5, microseconds=3)),
    ],
)
def test_units_add_up(text: str, span: timedelta) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "5", "soon", "-5s", "5 s", "1h30", "s", "99999999w", "٣s"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is a duration"):
        parse_span(text)


@given(integers(min_value=0, max_value=10**15))
def test_what_is_written_is_read_as_the_same(micros: int) -> None:
    span = timedelta(microseconds=micros)
    assert parse_span(span_text(span)) == span
