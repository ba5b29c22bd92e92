"""Figures of matplotlib as SVG that is part of a page: its letters and colours are the page's, in light and in dark.

Colours are drawn as marks, which become the page's variables when the figure is written.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GRID", "INK", "MUTED", "PAPER", "SERIES", "make_figure", "svg"]

INK, MUTED, GRID, PAPER = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
"""Colours of letters, of what is less important, of lines behind the data, and of the page."""

SERIES = tuple(f"#0a0b1{number}" for number in range(1, 7))
"""Colours of data, in the order of use."""

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--rule)",
    PAPER: "var(--paper)",
    **{mark: f"var(--series{number})" for number, mark in enumerate(SERIES, 1)},
}
_SETTINGS: Any = {
    "svg.fonttype": "none",
    # Ids of clip paths and the like come from what is drawn alone.
    "svg.hashsalt": "halfmq",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,
}
_WIDTH = 8.4


def make_figure(height: float = 2.9) -> tuple[Figure, Axes]:
    """An empty figure of the page's width with one pair of axes; the height is in inches."""
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, length=3)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(MUTED)
        axis.get_offset_text().set_color(MUTED)
    return figure, axes


def svg(figure: Figure, label: str, prefix: str) -> str:
    """A figure as an SVG element.

    Args:
        figure: What to draw.
        label: What is read aloud in its place.
        prefix: Before all ids, so that those of two figures differ.
    """
    out = io.StringIO()
    # A dollar in a name is no formula; the setting is for texts that are made while it is drawn.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with mpl.rc_context(_SETTINGS):
        figure.savefig(
            out,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    drawn = out.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"\s*<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    # They tell names that users gave, and could end where those do.
    drawn = re.sub(r"\s*<!--.*?-->", "", drawn, flags=re.DOTALL)
    # It would be for the whole page, which says the same for all figures.
    drawn = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", drawn, flags=re.DOTALL)
    # In tags only: what users wrote stays as it is.
    drawn = re.sub(r"<[^<>]+>", lambda tag: _of_the_page(tag[0], prefix), drawn)
    head, rest = drawn.split(">", 1)
    # The page says how wide it is.
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    spoken = escape(label, {'"': "&quot;"})
    return f'{head} role="img" aria-label="{spoken}">{rest}'.strip()


def _of_the_page(tag: str, prefix: str) -> str:
    for mark, variable in _VARIABLES.items():
        tag = tag.replace(mark, variable)
    tag = re.sub(r'\b(id="|href="#)|(url\(#)', rf"\g<0>{prefix}", tag)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", tag)
