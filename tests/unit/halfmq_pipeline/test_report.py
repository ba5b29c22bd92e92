"""Reports: whole or not there, the same for the same content, and nothing in them that a value could break."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from consumer_sdk.errors import ConfigurationError
from halfmq_pipeline.reports.drawing import svg
from halfmq_pipeline.reports.durations import duration_text
from halfmq_pipeline.reports.plots import group_bars, lines, log_histogram, stacked_bars
from halfmq_pipeline.reports.report import Headline, Report, Share, value_text

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TIMES = [NOW + timedelta(minutes=15 * number) for number in range(8)]
NASTY = '<script>alert("1")</script> & id="x" $a_b$ #0a0b01 {{ 7 * 7 }} ü'


def _report() -> Report:
    report = Report("Orders", "What was ordered.", {"From": NOW, "Groups": 3}, [Headline("lost", 2, "bad")])
    section = report.section("Over time", "By quarter of an hour.")
    counts = [5.0, 3.0, 0.0, 8.0, None, 2.0, 9.0, 4.0]
    section.figure(stacked_bars(TIMES, timedelta(minutes=15), {"in": counts, "out": counts}, label="orders"), "Orders")
    section.figure(lines(TIMES, {"p50": counts, "p99": counts}, label="time", unit="duration"), "Times")
    section.figure(lines(TIMES, {"lost": [0.0] * 8}, label="lost", unit="share"), "Lost")
    section.figure(log_histogram([1e3, 1e4, 1e5], [3, 4], label="orders", marks={"p50": 2e3, "max": 9e4}), "Spread")
    section.figure(group_bars(["shop", "till"], {"in": [3, 4], "out": [1, 0]}, label="orders"), "By group")
    section.table(["group", "orders"], [("shop", 1234), ("till", None)], caption="All groups")
    return report


def _parsed(page: str) -> ElementTree.Element:
    assert page.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(page.partition("\n")[2])


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = _report().html()
    root = _parsed(page)
    kinds = Counter(element.tag.partition("}")[2] for element in root.iter())
    assert kinds["svg"] == kinds["figure"] == 5
    assert kinds["script"] == kinds["link"] == kinds["img"] == 0
    assert set(re.findall(r"https?://[^\"' ]*", page)) == {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    ids = Counter(element.get("id") for element in root.iter() if element.get("id"))
    assert set(ids.values()) == {1}
    named = re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page)
    assert named
    assert set(named) <= ids.keys()
    assert "#0a0b" not in page


def test_the_same_content_gives_the_same_bytes() -> None:
    assert _report().html() == _report().html()


def test_settings_of_matplotlib_are_left_alone() -> None:
    before = dict(mpl.rcParams)
    _report().html()
    assert dict(mpl.rcParams) == before


def test_values_are_shown_and_never_read_as_part_of_the_page() -> None:
    report = Report(NASTY, NASTY, {NASTY: NASTY}, [Headline(NASTY, NASTY)])
    section = report.section(NASTY, NASTY)
    section.table([NASTY], [[NASTY]], caption=NASTY)
    section.figure(group_bars(["--> $a$"], {NASTY[:20]: [1.0], NASTY[30:]: [2.0]}, label=NASTY), NASTY)
    root = _parsed(report.html())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    texts = [(element.text or "").strip() for element in root.iter()]
    # Title twice, lead, headline twice, fact twice, section, paragraph, caption, heading, cell, axis, caption.
    assert texts.count(NASTY) == 14
    assert {"--> $a$", NASTY[:20].strip(), NASTY[30:].strip()} <= set(texts)
    assert [element.get("aria-label") for element in root.iter() if element.get("role") == "img"] == [NASTY]


def test_numbers_stand_to_the_right_and_words_do_not() -> None:
    report = Report("Orders")
    report.section("All").table(
        ["group", "orders", "share", "time", "gap"],
        [("shop", 1234, Share(0.125), timedelta(milliseconds=12.3), None), ("till", None, None, None, None)],
    )
    cells = re.findall(r"<td class=\"(\w+)\">(.*?)</td>", report.html())
    assert cells == [
        ("short", "shop"),
        ("number", "1,234"),
        ("number", "12.50 %"),
        ("number", "12.3 ms"),
        ("short", "–"),
        ("short", "till"),
        *[("number", "–")] * 3,
        ("short", "–"),
    ]


def test_an_empty_table_says_so() -> None:
    report = Report("Orders")
    report.section("All").table(["group", "orders"], [])
    assert '<td class="none" colspan="2">none</td>' in report.html()


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 values is in a table of 2 columns"):
        Report("Orders").section("All").table(["group", "orders"], [["shop"]])


def test_plots_of_nothing_are_empty_axes() -> None:
    report = Report("Orders")
    section = report.section("All")
    section.figure(stacked_bars([], timedelta(minutes=1), {"in": []}, label="orders"), "Orders")
    section.figure(lines([], {"p50": []}, label="time", unit="duration"), "Times")
    section.figure(lines(TIMES, {"p50": [None] * 8}, label="count"), "Nothing")
    section.figure(lines(TIMES[:1], {"p50": [0.0]}, label="time", unit="duration"), "At once")
    section.figure(log_histogram([1.0, 10.0], [0], label="orders"), "Spread")
    section.figure(group_bars([], {"in": []}, label="orders", unit="share"), "By group")
    _parsed(report.html())


def test_a_written_report_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    Report("First").write(path)
    _report().write(path)
    assert path.read_text(encoding="utf-8") == _report().html()
    assert list(path.parent.iterdir()) == [path]


def test_a_report_that_fails_leaves_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    Report("First").write(path)

    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="the disk is full"):
        _report().write(path)
    monkeypatch.undo()
    assert "<h1>First</h1>" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="name a folder that can be") as raised:
        Report("First").write(tmp_path / "file" / "report.html")
    assert raised.value.field == "output"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        (1234567, "1,234,567"),
        (1234.5, "1,234.5"),
        (2.0, "2"),
        (Share(0.0), "0 %"),
        (Share(0.0314), "3.14 %"),
        (Share(1.0), "100 %"),
        (NOW.astimezone(), "2026-05-01 12:00:00"),
        ("text", "text"),
    ],
)
def test_values(value: object, shown: str) -> None:
    assert value_text(value) == shown


@pytest.mark.parametrize(
    ("microseconds", "shown"),
    [
        (0, "0 µs"),
        (850, "850 µs"),
        (999.4, "999 µs"),
        (999.9, "1 ms"),
        (1000, "1 ms"),
        (12_345, "12.3 ms"),
        (123_456, "123 ms"),
        (999_999, "1 s"),
        (1_234_000, "1.23 s"),
        (90 * 1_000_000, "1.5 min"),
        (3 * 3600 * 1_000_000, "3 h"),
        (1234 * 86_400 * 1_000_000, "1,234 d"),
        (-2_000_000, "-2 s"),
    ],
)
def test_durations(microseconds: float, shown: str) -> None:
    assert duration_text(microseconds) == shown


def test_a_long_legend_leaves_the_plot_its_room() -> None:
    names = [f"{kind} that are of the kind {number}" for number, kind in enumerate(["rows", "messages", "keys"] * 2)]
    figure = stacked_bars(TIMES, timedelta(minutes=15), {name: [1.0] * 8 for name in names}, label="findings")
    svg(figure, "drawn once, so that its parts have their places", "")
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    (legend,), (axes,) = figure.legends, figure.axes
    outline = legend.get_window_extent(renderer)
    assert 0 <= outline.x0 < outline.x1 <= figure.bbox.width
    assert axes.bbox.width > 0.9 * figure.bbox.width
    assert outline.y0 >= axes.bbox.y1
    assert axes.bbox.height > 0.4 * figure.bbox.height


def test_long_values_may_break_anywhere_and_short_ones_nowhere() -> None:
    report = Report("Orders")
    report.section("All").table(["key", "details"], [("order-1", '{"a": "' + "a" * 90 + '"}'), ("order-2", "")])
    classes = re.findall(r"<td class=\"(\w+)\">", report.html())
    assert classes == ["short", "long"] * 2
    assert re.search(r"td\.long \{[^}]*overflow-wrap: anywhere;", report.html())
    assert re.search(r"td\.number, td\.short \{ white-space: nowrap; \}", report.html())
