"""Terminal output: progress bars, or, without a terminal, a line every second; then a table."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self, TypeAlias

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.progress import TaskID

Line: TypeAlias = tuple[str, int | str, str]
"""Name, count, and remark."""

PLAIN_WIDTH = 160


class Display:
    """Shows progress; a context manager."""

    def __init__(self, goals: Mapping[str, int]) -> None:
        """Takes the figures to show, and their totals."""
        self.console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
        self._start = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description:>12}"),
            BarColumn(40),
            MofNCompleteColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {name: self._bars.add_task(name, total=goal) for name, goal in goals.items()}
        self._goals = goals
        self._printed_at = 0.0
        self._last = ""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """Prints an event."""
        self._bars.console.print(f"{self.elapsed:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    def show(self, figures: Mapping[str, int]) -> None:
        """Updates the figures."""
        for name, value in figures.items():
            self._bars.update(self._tasks[name], completed=value)
        now = time.monotonic()
        line = ", ".join(f"{name} {value:,}/{self._goals[name]:,}" for name, value in figures.items())
        if not self.console.is_terminal and now - self._printed_at >= 1.0 and line != self._last:
            self._printed_at, self._last = now, line
            self.say(line)

    def table(self, title: str, lines: Sequence[Line]) -> None:
        """Shows the final figures."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("what")
        table.add_column("count", justify="right")
        table.add_column("remark", overflow="fold")
        for name, value, remark in lines:
            table.add_row(name, f"{value:,}" if isinstance(value, int) else value, remark)
        self.console.print(table)

    def verdict(self, problems: Sequence[str]) -> None:
        """Prints whether all conditions hold, and the failed ones."""
        for problem in problems:
            self.console.print(f"WRONG: {problem}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        if not problems:
            self.console.print(f"Everything as it must be, after {self.elapsed:.1f} s.", style="bold green")

    def __enter__(self) -> Self:
        """Starts drawing."""
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops drawing."""
        self._bars.stop()
