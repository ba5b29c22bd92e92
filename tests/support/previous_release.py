"""The release before this one, from this repository's own history: brokers of both on one database are tested.

It runs in this environment: its own modules, with the packages that are installed here.
"""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from support.brokers import BrokerProcess
from support.databases import in_ci

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.forking import ForkedCommand

PREVIOUS = "b85feecec05541a09e2378608de30017ba13b3f2"
"""The commit that was released last, or its tag. Changed when a release was made: CONTRIBUTING.md tells when."""

_CHECKOUT = Path(__file__).parents[2]


def previous_release() -> Path:
    """A folder with its files; made once from the history, which has to be there."""
    folder = _CHECKOUT / ".halfmq" / "previous" / PREVIOUS
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            packed = _git("archive", PREVIOUS)
            if packed.returncode and _is_shallow():
                _git("fetch", "--quiet", "--unshallow")
                packed = _git("archive", PREVIOUS)
            if packed.returncode:
                _missing(packed.stderr.decode())
            partial = folder.with_suffix(".partial")
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
                files.extractall(partial, filter="data")
            partial.rename(folder)
    return folder


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=_CHECKOUT, capture_output=True, check=False)


def _is_shallow() -> bool:
    return _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"true"


def _missing(reason: str) -> None:
    message = f"the previous release, {PREVIOUS}, is not in this clone: git fetch --unshallow --tags ({reason.strip()})"
    # A clone without history has no place to take it from.
    if in_ci() and not _is_shallow():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


class PreviousBroker(BrokerProcess):
    """A broker of the release before this one."""

    def _started(self) -> ForkedCommand:
        # Both are used alike.
        return cast("ForkedCommand", start_previous(*self.arguments, variables=self._variables))


def start_previous(*arguments: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """The command `halfmq` of the release before this one, with these HALFMQ_ variables and no others."""
    return start_program("-m", "halfmq_cli", *arguments, variables=variables)


def start_program(*arguments: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A program of Python on the release before this one: what follows `python`, in a folder with its files."""
    folder = previous_release()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(folder), str(folder / "proto" / "gen")]), **(variables or {})}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
