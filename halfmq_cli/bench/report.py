"""Figures, printed as a table or as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# Columns of a table that is printed into a file.
_WIDEST = 200
# From here on figures are shown without fractions.
_WHOLE = 100


def print_figures(command: str, figures: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints what a command measured, by name."""
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    table = Table(title=f"halfmq bench {command}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for part, content in parts:
            shown = f"{content:,.3f}" if isinstance(content, float) else "" if content is None else str(content)
            table.add_row(f"{name} {part}".rstrip(), shown)
    Console().print(table)


def print_table(title: str, key: str, rows: Mapping[str, Mapping[str, float | None]]) -> None:
    """Prints a table of figures: a row each, `key` says what its name is; None is shown as n/a."""
    table = Table(title=title)
    table.add_column(key)
    columns = list(dict.fromkeys(column for figures in rows.values() for column in figures))
    for column in columns:
        table.add_column(column, justify="right")
    for name, figures in rows.items():
        table.add_row(name, *[_cell(figures[column]) if column in figures else "" for column in columns])
    Console(width=max(Console().width, _WIDEST)).print(table)


def _cell(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= _WHOLE or value == int(value) else f"{value:.3g}"


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile of the values; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)] if values else 0.0


def percentiles(prefix: str, times: Sequence[float]) -> dict[str, float]:
    """Figures of times in milliseconds: p50, p90, p99 and the longest."""
    shown = {f"{prefix}p{percent}_ms": round(percentile(times, percent), 3) for percent in (50, 90, 99)}
    return shown | {f"{prefix}max_ms": round(max(times), 3)}


def micros_each(seconds: float, count: int) -> float:
    """Microseconds per item."""
    return round(seconds * 1e6 / count, 1)
