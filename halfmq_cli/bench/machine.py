"""What else the machine does while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Part of what is measured, whoever started them.
DATABASE_SERVERS = {"mariadbd", "mysqld"}
_TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Processor time of the processes that have nothing to do with this one, since this was made (proc(5))."""

    def __init__(self, *part_of_it: int) -> None:
        """Takes ids of further processes that are measured."""
        self._part_of_it = set(part_of_it)
        self._began = time.monotonic()
        self._before = self._others()

    def used_by_others(self) -> float:
        """Processors that others used on average, of those that live still."""
        now = self._others()
        ticks = sum(used - self._before.get(process, 0) for process, used in now.items())
        return round(ticks / _TICKS / (time.monotonic() - self._began), 2)

    def _others(self) -> dict[int, int]:
        """Ticks used by each process that is none of ours."""
        parents: dict[int, int] = {}
        used: dict[int, int] = {}
        ours = {os.getpid(), *self._part_of_it}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
            except OSError:
                continue  # It has ended.
            process = int(folder.name)
            parents[process] = int(fields[1])
            used[process] = int(fields[11]) + int(fields[12])
            if {Path(word).name for word in command.split("\0")} & DATABASE_SERVERS:
                ours.add(process)

        def is_ours(process: int) -> bool:
            while process not in ours and process in parents:
                process = parents[process]
            return process in ours

        return {process: ticks for process, ticks in used.items() if not is_ours(process)}
