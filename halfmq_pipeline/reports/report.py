"""Reports: one self-contained HTML file, for a browser, a mail or a printer.

    report = Report("Orders of May", facts={"Database": "shop"})
    section = report.section("By day", "What came in.")
    section.figure(lines(days, {"orders": counts}, label="orders"), "Orders of each day")
    section.table(["day", "orders"], zip(days, counts))
    report.write(Path("orders.html"))

A report has no scripts and loads nothing; it supports light and dark mode. Every value is escaped. The same content
gives the same bytes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jinja2

from halfmq_pipeline.reports.drawing import svg
from halfmq_pipeline.reports.durations import duration_text
from halfmq_pipeline.reports.files import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

__all__ = ["Headline", "Report", "Section", "Share", "Tone", "value_text"]

Tone: TypeAlias = Literal["plain", "good", "bad"]
"""Colour of a headline."""

_MICROSECOND = timedelta(microseconds=1)
_NONE = "\N{EN DASH}"
_TEMPLATE = "report.html.j2"
_SHORT = 24


class Share(float):
    """A share, from 0 to 1; shown in per cent."""


@dataclass(frozen=True)
class Headline:
    """A large figure at the top of a report.

    Attributes:
        label: Its label.
        value: The figure; shown as in a table.
        tone: Whether it is good or bad.
    """

    label: str
    value: object
    tone: Tone = "plain"


class Section:
    """A part of a report: texts, tables and figures, in the order in which they were added."""

    def __init__(self, title: str) -> None:
        """An empty section."""
        self.title = title
        self.parts: list[dict[str, Any]] = []

    def text(self, paragraph: str) -> None:
        """Adds a paragraph."""
        self.parts.append({"kind": "text", "text": paragraph})

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> None:
        """Adds a table. Columns with only numbers, durations and gaps are right-aligned.

        Args:
            headings: One for each column.
            rows: Values, as many as headings; None is shown as a dash.
            caption: The caption.

        Raises:
            ValueError: A row has more or fewer values than there are headings.
        """
        values = [tuple(row) for row in rows]
        for row in values:
            if len(row) != len(headings):
                msg = f"a row of {len(row)} values is in a table of {len(headings)} columns"
                raise ValueError(msg)
        right = [
            any(value is not None for value in column) and all(_is_number(value) for value in column)
            for column in (zip(*values, strict=True) if values else ([] for _ in headings))
        ]
        texts = [tuple(map(value_text, row)) for row in values]
        # Line breaks: nowhere within short values, anywhere within long ones.
        kinds = [
            "number" if number else "long" if any(len(text) > _SHORT for text in column) else "short"
            for number, column in zip(right, zip(*texts, strict=True) if texts else ([] for _ in headings), strict=True)
        ]
        shown = [list(zip(row, kinds, strict=True)) for row in texts]
        heads = list(zip(headings, ["number" if number else "" for number in right], strict=True))
        self.parts.append({"kind": "table", "headings": heads, "rows": shown, "caption": caption})

    def figure(self, figure: Figure, caption: str) -> None:
        """Adds a matplotlib figure; the caption is also its alternative text."""
        self.parts.append({"kind": "figure", "figure": figure, "caption": caption})


@dataclass
class Report:
    """A report.

    Attributes:
        title: The title.
        lead: A sentence or two under the title.
        facts: Its sources, by name: the database, the time, the settings.
        headlines: The most important figures.
        sections: Its parts.
    """

    title: str
    lead: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    headlines: Sequence[Headline] = ()
    sections: list[Section] = field(default_factory=list)

    def section(self, title: str, text: str = "") -> Section:
        """Adds a section, and returns it."""
        made = Section(title)
        if text:
            made.text(text)
        self.sections.append(made)
        return made

    def html(self) -> str:
        """The whole page."""
        loader = jinja2.PackageLoader("halfmq_pipeline.reports", ".")
        page = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        numbers = itertools.count(1)

        def drawn(figure: Figure, caption: str) -> str:
            # Ids must differ between the figures of a page.
            return svg(figure, caption, f"figure{next(numbers)}-")

        return page.get_template(_TEMPLATE).render(report=self, drawn=drawn, value_text=value_text)

    def write(self, path: Path) -> None:
        """Writes the page; an existing file is replaced atomically, and unchanged if this fails.

        Raises:
            ConfigurationError: The folder cannot be written to.
        """
        page = self.html()
        with replaced(path) as temporary:
            temporary.write_text(page, encoding="utf-8")


def value_text(value: object) -> str:
    """Formats a value.

    Numbers have commas, shares are per cent, durations (timedelta) have a unit, times are in UTC to the second.
    None is a dash.
    """
    if value is None or value != value:  # noqa: PLR0124 - not a number
        return _NONE
    return next((shown(value) for kind, shown in _SHOWN if isinstance(value, kind)), str(value))


def _share_text(share: float) -> str:
    return f"{100 * share:.2f} %" if 0 < share < 1 else f"{100 * share:.0f} %"


# The first match: a share is a float, and True is an int.
_SHOWN: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "yes" if value else "no"),
    (int, lambda value: f"{value:,}"),
    (Share, _share_text),
    (float, lambda value: f"{value:,.3f}".rstrip("0").rstrip(".")),
    (timedelta, lambda value: duration_text(value / _MICROSECOND)),
    (datetime, lambda value: f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"),
)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, Number | timedelta) and not isinstance(value, bool))
