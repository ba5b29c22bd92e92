"""Lists and pages: aligned and never wrapped in a pipe, JSON by the names of the SDK."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING

import pytest

from client_core.admin import GroupMode, TopicInfo
from client_core.filters import SqlFilter, TagFilter
from client_core.message import Message
from client_core.stored import StoredMessage
from halfmq.v1 import message_pb2
from halfmq_cli.admin.output import Column, Listing, Output, Page
from halfmq_cli.admin.records import as_json, json_line
from halfmq_cli.admin.watching import show

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS: list[Column[tuple[str, int]]] = [
    Column("name", lambda pair: pair[0]),
    Column("count", lambda pair: str(pair[1]), right=True),
]


@dataclass
class Sought:
    """Counts how many items were looked for."""

    taken: int = 0

    def find(self) -> Iterator[tuple[str, int]]:
        for number in count():
            self.taken += 1
            yield f"n{number}", number


def test_lines_are_aligned_and_as_long_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output(as_json=False), Listing(COLUMNS, lambda: [("a", 1), ("b" * 300, 10)], "none"), None)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"name{' ' * 296}  count", f"a{' ' * 299}      1", f"{'b' * 300}     10"]


def test_a_list_ends_at_its_limit_and_says_that_there_is_more(capsys: pytest.CaptureFixture[str]) -> None:
    sought = Sought()
    show(Output(as_json=True), Listing(COLUMNS, sought.find, "none", limit=2), None)
    printed = capsys.readouterr()
    assert printed.out == '["n0", 0]\n["n1", 1]\n'
    assert printed.err == "halfmq: 2 are shown, and there are more; --limit 0 shows all\n"
    assert sought.taken == 3


def test_an_endless_list_is_written_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    sought = Sought()
    listing = Listing(COLUMNS, lambda: islice(sought.find(), 2500), "none")
    show(Output(as_json=False), listing, None)
    assert len(capsys.readouterr().out.splitlines()) == 2501


def test_nothing_is_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output(as_json=True), Listing(COLUMNS, list, "there are none"), None)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "halfmq: there are none\n")


def test_a_page_has_its_parts_below_titles() -> None:
    page = Page()
    page.title("topic a\x1b")
    page.fields([("queues", "4"), ("retention", "1d")])
    page.title("queues")
    page.table(COLUMNS, [("a", 1)])
    page.lines(["x\ny"])
    assert page.text() == [
        "topic a?",
        "  queues     4",
        "  retention  1d",
        "",
        "queues",
        "  name  count",
        "  a         1",
        "  x?y",
    ]


def test_json_has_the_names_of_the_sdk_utc_and_seconds() -> None:
    at = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    topic = TopicInfo("a", 4, timedelta(days=1), 0, timedelta(seconds=0.5), 1, at)
    assert as_json(topic) == {
        "name": "a",
        "queues": 4,
        "retention": 86_400.0,
        "retention_bytes": 0,
        "dedup_window": 0.5,
        "priority_levels": 1,
        "created_at": "2026-01-31T08:30:00Z",
        "topic_id": "",
        "compression": "NONE",
    }
    assert as_json([GroupMode.BROADCASTING, TagFilter("a"), SqlFilter("b = 1"), None]) == [
        "BROADCASTING",
        {"tags": "a"},
        {"sql": "b = 1"},
        None,
    ]


def test_bodies_are_base64_and_text_where_they_are_utf_8() -> None:
    stored = as_json(StoredMessage(message_pb2.LogMessage(topic="a", body=b"\xff", keys=["k"])))
    assert (stored["body"], stored["text"], stored["size"], stored["keys"]) == ("/w==", None, 1, ["k"])
    waiting = as_json(Message("a", "é", delay=timedelta(seconds=2)))
    assert (waiting["text"], waiting["size"], waiting["delay"]) == ("é", 2, 2.0)


def test_json_lines_are_ascii() -> None:
    line = json_line({"a": "\u202e\x9bé"})
    assert line.isascii()
    assert json.loads(line) == {"a": "\u202e\x9bé"}
