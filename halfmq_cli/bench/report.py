"""Figures, printed as a table or as JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
