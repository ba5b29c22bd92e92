"""The command `halfmq` in a process of its own, as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from support.patience import HANG

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHECKOUT = Path(__file__).parents[2]


def environment_of(variables: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of the command: with these HALFMQ_ variables and no others."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    # Where it is not installed, it is found beside the tests from any folder.
    paths = [str(_CHECKOUT), str(_CHECKOUT / "proto" / "gen"), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path), **(variables or {})}


def run(
    *arguments: str, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it with these HALFMQ_ variables and no others, in a folder; what it wrote, and its status."""
    return subprocess.run(
        [sys.executable, "-m", "halfmq_cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
        env=environment_of(variables),
        cwd=folder or _CHECKOUT,
    )


def killed_when_it_tells(text: str, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Runs it until it has written a line with this text on standard error, then kills it; what it wrote there."""
    command = [sys.executable, "-m", "halfmq_cli", *arguments]
    told = []
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment_of(variables)
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told.append(line)
            if text in line:
                process.kill()
                break
    written = "".join(told)
    assert text in written, written
    return written


def halfmq(*arguments: str) -> str:
    """Runs it, which must work; what it wrote on standard output."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
