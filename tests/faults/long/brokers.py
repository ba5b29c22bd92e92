"""Brokers whose day is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from faults.long.day import Day

CHECKS = {"first_check": 0.5, "check_interval": 1.0, "max_checks": 5}
_TESTS = Path(__file__).parents[2]
_TRACE = "HALFMQ_LONG_TRACE"


class ShortDay(BrokerProcess):
    """A process of its own, whose memory is all its own."""

    def __init__(self, database: str, day: Day, **settings: object) -> None:
        self._day = day
        super().__init__(database, **{**CHECKS, **day.settings(), **settings})

    def _started(self) -> subprocess.Popen[str]:  # type: ignore[override]
        command = [sys.executable, "-m", "faults.long.serving", str(self._day.hour), str(self._day.sweep)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_") or name == _TRACE}
        own = os.pathsep.join([str(_TESTS), *filter(None, sys.path)])
        return subprocess.Popen(
            [*command, *self.arguments],
            cwd=self._folder,
            env={**kept, **self._variables, "PYTHONPATH": own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
