"""Matplotlib figures as inline SVG: fonts and colours are the page's, in light and in dark.

Colours are drawn as placeholders, which are replaced by the page's variables when the figure is written.
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
"""Colours of text, secondary text, grid lines, and the page."""

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
    # Ids of clip paths and the like depend only on the content.
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
        figure: The figure.
        label: Its alternative text.
        prefix: Prefix of all ids, so that those of two figures differ.
    """
    out = io.StringIO()
    # A dollar in a name is not a formula; the setting applies to texts created while drawing.
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
    # They contain users' names, which could close them.
    drawn = re.sub(r"\s*<!--.*?-->", "", drawn, flags=re.DOTALL)
    # It would apply to the whole page, which has the same rule for all figures.
    drawn = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", drawn, flags=re.DOTALL)
    # In tags only: users' texts are unchanged.
    drawn = re.sub(r"<[^<>]+>", lambda tag: _of_the_page(tag[0], prefix), drawn)
    head, rest = drawn.split(">", 1)
    # The page sets its width.
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    spoken = escape(label, {'"': "&quot;"})
    return f'{head} role="img" aria-label="{spoken}">{rest}'.strip()


def _of_the_page(tag: str, prefix: str) -> str:
    for mark, variable in _VARIABLES.items():
        tag = tag.replace(mark, variable)
    tag = re.sub(r'\b(id="|href="#)|(url\(#)', rf"\g<0>{prefix}", tag)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "inherit", tag)
