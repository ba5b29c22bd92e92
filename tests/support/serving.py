"""`halfmq serve` as a command that refuses to start: its exit status and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.patience import HANG

_CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Refusal:
    """How the command ended."""

    status: int
    output: str
    errors: str

    def names(self, field: str, *words: str) -> None:
        """Asserts one line that names the setting at fault and has these words; the line of a refusal, not a crash."""
        assert self.status == 2, self.errors
        assert self.output == ""
        lines = [line for line in self.errors.splitlines() if line]
        assert len(lines) == 1, self.errors
        assert lines[0].startswith(f"halfmq: {field}: "), self.errors
        for word in words:
            assert word in lines[0], self.errors


def run_serve(*arguments: str, **environment: str) -> Refusal:
    """Runs it with these arguments and HALFMQ_ variables, and waits for its end."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    done = subprocess.run(
        [sys.executable, "-m", "halfmq_cli", "serve", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=_CHECKOUT,
        env={**own, **environment},
        timeout=HANG,
    )
    return Refusal(done.returncode, done.stdout, done.stderr)
