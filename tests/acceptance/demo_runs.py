"""Runs `halfmq demo` as a process, and reads the table that it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LINE = re.compile(r"^ (\S.*?)  +([\d,]+|equal|NOT EQUAL)   (.*?) *$", re.MULTILINE)
_COMMAND = [sys.executable, "-m", "halfmq_cli", "demo"]


@dataclass(frozen=True)
class DemoRun:
    """What a run said, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def figures(self) -> dict[str, int | str]:
        """The table: numbers as numbers."""
        table = self.output.partition("What the broker and the tables say")[2]
        return {
            name: int(count.replace(",", "")) if count[0].isdigit() else count
            for name, count, _ in _LINE.findall(table)
        }

    @property
    def remarks(self) -> dict[str, str]:
        """The remarks of the table."""
        table = self.output.partition("What the broker and the tables say")[2]
        return {name: remark for name, _, remark in _LINE.findall(table)}

    def number(self, name: str) -> int:
        """A figure of the table."""
        found = self.figures[name]
        assert isinstance(found, int), self.output
        return found


def run_demo(*arguments: str, temporary: Path, on_line: Callable[[str], None] | None = None) -> DemoRun:
    """Runs the demo to its end.

    Args:
        arguments: its options.
        temporary: where it may put its files.
        on_line: called with every line of its output, while it runs.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    said = temporary / "stderr"
    with said.open("w") as errors:
        process = subprocess.Popen(
            [*_COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**environment, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                if on_line is not None:
                    on_line(line)
        status = process.wait(60)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return DemoRun(status, "".join(lines), said.read_text())
