"""Database servers that a test may kill and misconfigure: its own, on its own data and port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from support.databases import Kind, in_ci

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_SCRIPT = Path(__file__).parents[2] / "scripts" / "db"


def run_db(*arguments: str, environment: Mapping[str, str], started: bool) -> str:
    """Runs scripts/db, and returns what it prints.

    A failure fails the test; outside CI it skips it while nothing was started.
    """
    done = subprocess.run(
        [_SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode != 0:
        message = f"scripts/db {' '.join(arguments)} failed:\n{done.stderr}"
        if started or in_ci():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return done.stdout


class PrivateServer:
    """A server of scripts/db in a folder of its own; a context manager that starts it."""

    def __init__(self, kind: Kind, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        """Takes where its data goes, and variables for scripts/db; it is as durable as it was shipped."""
        self.kind = kind
        self.url = ""
        self._folder = folder
        self._environment = {**os.environ, **(variables or {}), "HALFMQ_DB_DIR": str(folder)}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._environment[f"HALFMQ_{kind.upper()}_PORT"] = str(free.getsockname()[1])

    def start(self) -> None:
        """Starts it, or starts it again on the same data and port, and waits until it takes connections."""
        url = self._run("start").split()[-1]
        assert url == self.url or not self.url, f"{self.kind} came back as {url}, it was {self.url}"
        self.url = url

    def kill(self) -> None:
        """SIGKILL."""
        self._run("kill")

    def stop(self) -> None:
        """Shuts it down."""
        self._run("stop")

    @property
    def pid(self) -> int:
        """Its process."""
        return int((self._folder / self.kind / "pid").read_text().split()[0])

    @property
    def running(self) -> bool:
        """Whether it runs: it may have given up by itself."""
        return "running" in next(line for line in self._run("status").splitlines() if line.startswith(self.kind))

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _run(self, command: str) -> str:
        return run_db(command, self.kind, environment=self._environment, started=bool(self.url))

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops it, and deletes its data: half a gigabyte and more."""
        self.stop()
        shutil.rmtree(self._folder / self.kind / "data", ignore_errors=True)
