"""The command `halfmq` in a process of its own, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHECKOUT = Path(__file__).parents[2]


def run(
    *arguments: str, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it with these HALFMQ_ variables and no others, in a folder; what it wrote, and its status."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    # Where it is not installed, it is found beside the tests from any folder.
    paths = [str(_CHECKOUT), str(_CHECKOUT / "proto" / "gen"), environment.get("PYTHONPATH", "")]
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in paths if path), **(variables or {})}
    return subprocess.run(
        [sys.executable, "-m", "halfmq_cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
        cwd=folder or _CHECKOUT,
    )


def halfmq(*arguments: str) -> str:
    """Runs it, which must work; what it wrote on standard output."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
