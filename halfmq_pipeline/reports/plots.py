"""The plots of reports: time series, histograms, and comparisons of groups.

All return a matplotlib figure for ``Section.figure``. Gaps are None. Times have a time zone and are shown in UTC.
"""

from __future__ import annotations

import itertools
import math
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from halfmq_pipeline.reports.drawing import GRID, INK, MUTED, PAPER, SERIES, make_figure
from halfmq_pipeline.reports.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["group_bars", "lines", "log_histogram", "stacked_bars"]

Values: TypeAlias = "Sequence[float | None]"
Unit: TypeAlias = Literal["count", "share", "duration"]

_DURATIONS = (
    *(10.0**power for power in range(7)),
    *(seconds * 1e6 for seconds in (10, 60, 600, 3600, 6 * 3600, 86_400, 10 * 86_400, 100 * 86_400)),
)
"""Ticks of a duration axis, in microseconds."""


def stacked_bars(times: Sequence[datetime], width: timedelta, series: Mapping[str, Values], *, label: str) -> Figure:
    """Bars over time, the series on top of one another.

    Args:
        times: Start of each bar.
        width: Duration of each.
        series: Values of each time, by name.
        label: Label of the values.
    """
    figure, axes = make_figure()
    below, wide = [0.0] * len(times), width / timedelta(days=1)
    for (name, values), color in zip(series.items(), _colors(series), strict=True):
        heights = [value or 0.0 for value in values]
        axes.bar(_places(times), heights, wide * 0.92, below, align="edge", color=color, label=name, linewidth=0)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    _time_axis(axes, times, width)
    _finish(figure, axes, label, len(series))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=all(value == int(value) for value in below)))
    axes.yaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_ylim(0, max([*below, 1e-9]) * 1.06)
    return figure


def lines(
    times: Sequence[datetime],
    series: Mapping[str, Values],
    *,
    label: str,
    unit: Unit = "count",
    width: timedelta = timedelta(0),
) -> Figure:
    """Lines over time.

    Args:
        times: Of the values.
        series: Values of each time, by name; a line breaks where there is none.
        label: Label of the values.
        unit: Unit of the values: a ``count``, a ``share`` (shown as 100 %), or a ``duration`` of a microsecond, which
            makes the scale logarithmic.
        width: How long each time lasts; values are drawn in the middle of it.
    """
    figure, axes = make_figure()
    for (name, values), color in zip(series.items(), _colors(series), strict=True):
        # A logarithmic scale has no 0.
        least = 1.0 if unit == "duration" else -math.inf
        heights = [math.nan if value is None else max(float(value), least) for value in values]
        axes.plot(
            _places([time + width / 2 for time in times]),
            heights,
            color=color,
            label=name,
            linewidth=1.6,
            marker="o",
            markersize=2.6,
        )
    _time_axis(axes, times, width)
    known = [float(value) for values in series.values() for value in values if value is not None]
    if unit == "duration":
        positive = [value for value in known if value > 0] or [1.0]
        _duration_axis(axes, "y", min(positive) / 1.5, max(positive) * 1.5)
    elif unit == "share":
        axes.set_ylim(0, max(0.05, *known, 0.0) * 1.08)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(_per_cent))
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(_count))
    _finish(figure, axes, label, len(series))
    return figure


def log_histogram(
    edges: Sequence[float], counts: Sequence[int], *, label: str, marks: Mapping[str, float] | None = None
) -> Figure:
    """How often durations occur, on a logarithmic scale.

    Args:
        edges: Bounds of the bars in microseconds, ascending and over 0; one more than there are counts.
        counts: How many durations lie between two bounds.
        label: Label of the counts.
        marks: Durations in microseconds to be marked by a line, by name.
    """
    figure, axes = make_figure()
    widths = [high - low for low, high in itertools.pairwise(edges)]
    axes.bar(edges[:-1], counts, widths, align="edge", color=SERIES[0], edgecolor=PAPER, linewidth=0.6)
    _duration_axis(axes, "x", edges[0], edges[-1])
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_ylim(0, max([*counts, 1]) * 1.18)
    # Lines that are close together share a label.
    told: list[tuple[str, float]] = []
    for name, value in sorted((marks or {}).items(), key=lambda mark: mark[1]):
        at = max(value, edges[0])
        axes.axvline(at, color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)))
        if told and math.log(at / told[-1][1]) < math.log(edges[-1] / edges[0]) * 0.06:
            told[-1] = (f"{told[-1][0]}, {name}", told[-1][1])
        else:
            told.append((name, at))
    top = axes.get_ylim()[1]
    for name, at in told:
        axes.annotate(
            name,
            (at, top),
            (4, -2),
            textcoords="offset points",
            color=INK,
            fontsize=8,
            va="top",
            annotation_clip=False,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
        )
    _finish(figure, axes, label, 1)
    return figure


def group_bars(
    names: Sequence[str], series: Mapping[str, Values], *, label: str, unit: Literal["count", "share"] = "count"
) -> Figure:
    """A bar for each group, from left to right, the first on top; the series one behind the other.

    Args:
        names: Of the groups.
        series: Values of each group, by name.
        label: Label of the values.
        unit: ``count`` or ``share``, as for `lines`.
    """
    figure, axes = make_figure(0.9 + 0.3 * max(len(names), 1))
    places = range(len(names))
    before = [0.0] * len(names)
    for (name, values), color in zip(series.items(), _colors(series), strict=True):
        widths = [value or 0.0 for value in values]
        axes.barh(places, widths, 0.62, before, color=color, label=name, linewidth=0)
        before = [base + width for base, width in zip(before, widths, strict=True)]
    axes.set_yticks(places, [_shortened(name) for name in names])
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.spines["bottom"].set_visible(False)
    if unit == "share":
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(_per_cent))
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=all(value == int(value) for value in before)))
        axes.xaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_xlabel(label)
    if len(series) > 1:
        _legend(figure, axes)
    return figure


def _count(value: float, _: object) -> str:
    return f"{value:,.10g}"


def _per_cent(value: float, _: object) -> str:
    return f"{100 * value:.4g} %"


def _places(times: Sequence[datetime]) -> list[float]:
    return [float(date2num(time)) for time in times]  # type: ignore[no-untyped-call]


def _colors(series: Mapping[str, Values]) -> list[str]:
    return [SERIES[number % len(SERIES)] for number in range(len(series))]


def _finish(figure: Figure, axes: Axes, label: str, series: int) -> None:
    axes.set_ylabel(label)
    if series > 1:
        _legend(figure, axes)


def _legend(figure: Figure, axes: Axes) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    handles, labels = axes.get_legend_handles_labels()
    # As many per row as fit: a wider legend would shrink the plot.
    for columns in range(len(labels), 0, -1):
        legend = figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            handlelength=1.0,
            handleheight=0.9,
            fontsize=9,
        )
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            break
        legend.remove()
    for text in legend.get_texts():
        text.set_color(INK)


def _time_axis(axes: Axes, times: Sequence[datetime], width: timedelta) -> None:
    # All plots of the same times have the same axis, whatever their values.
    if times:
        end = times[-1] + width
        axes.set_xlim(*_places([times[0], end if end > times[0] else end + timedelta(minutes=1)]))
    locator = AutoDateLocator(tz=UTC, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _duration_axis(axes: Axes, which: Literal["x", "y"], low: float, high: float) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    if which == "x":
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    ticks = [duration for duration in _DURATIONS if low <= duration <= high]
    if len(ticks) > 1:
        axis.set_ticks(ticks)
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: duration_text(value)))


def _shortened(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:27]}…"
