"""Text for people: nothing that clients sent moves a cursor, bodies are shown in a form that can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from halfmq_cli.admin.plain import age, body_line, body_lines, iso, plain, short, size, text_of, until

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Zürich 東京", "Zürich 東京"),
        ("a\x1b[2Jb", "a?[2Jb"),
        ("a\nb\tc\r", "a?b?c?"),
        ("a\u202eb\u2028c\u200bd\x9be", "a?b?c?d?e"),
    ],
)
def test_what_cannot_be_printed_is_a_question_mark(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0ms"), (0.25, "250ms"), (4.5, "4.5s"), (7, "7s"), (65, "1m5s"), (3600, "1h"), (90_061, "1d1h"), (-3, "0ms")],
)
def test_durations_have_their_two_largest_units(seconds: float, shown: str) -> None:
    assert short(timedelta(seconds=seconds)) == shown


def test_times_are_told_by_their_distance() -> None:
    assert age(NOON - timedelta(minutes=5), NOON) == "5m"
    assert age(None, NOON) == "-"
    assert until(NOON + timedelta(seconds=3), NOON) == "3s"
    assert until(NOON - timedelta(seconds=3), NOON) == "due"
    assert iso(datetime.fromisoformat("2026-01-31T13:00:00.5+01:00")) == "2026-01-31T12:00:00.500000Z"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (1 << 60, "1048576.0 TiB")],
)
def test_sizes_have_their_unit(count: int, shown: str) -> None:
    assert size(count) == shown


def test_a_body_is_shown_as_json_as_text_or_as_digits() -> None:
    assert body_lines(b'{"a":[1]}') == ["{", '  "a": [', "    1", "  ]", "}"]
    assert body_lines(b'{"a":[1]}', "text") == ['{"a":[1]}']
    assert body_lines(b"one\ntwo\x1b"[:7]) == ["one", "two"]
    assert body_lines(b"\x00AB\xff") == ["000000  00 41 42 ff                                      .AB."]
    assert body_lines(b"AB", "hex") == ["000000  41 42                                            AB"]
    assert body_lines("é".encode()) == ["é"]


def test_a_preview_says_how_much_is_left() -> None:
    assert body_lines(b"x" * 500)[-1] == "... 100 more characters (--full shows all)"
    assert body_lines(b"\x00" * 200)[-1] == "... 100 more bytes (--full shows all)"
    assert body_lines(b"x" * 500, limit=None) == ["x" * 500]


def test_a_body_in_a_line_has_no_line_breaks() -> None:
    assert body_line(b"one\ntwo\tx") == "one\\ntwo\\tx"
    assert body_line(b'{ "a" : 1 }', "json") == '{"a": 1}'
    assert body_line(b"\x00\xff") == "00ff"
    assert body_line(b"x" * 50, limit=10) == "xxxxxxx..."


def test_control_characters_make_a_body_binary() -> None:
    assert text_of(b"a\r\n\tb") == "a\r\n\tb"
    assert text_of(b"a\x1b[2J") is None
    assert text_of(b"\xff") is None


def test_a_body_nested_too_deeply_is_shown_as_text() -> None:
    body = b"[" * 100_000
    assert body_lines(body, limit=3)[0] == "[[["
    assert body_line(body, "json", limit=10) == "[[[[[[[..."
