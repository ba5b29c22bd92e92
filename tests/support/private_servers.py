"""Database servers that a test may kill and misconfigure: its own, on its own data and port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from support.databases import Kind, in_ci

if TYPE_CHECKING:
    from types import TracebackType

_SCRIPT = Path(__file__).parents[2] / "scripts" / "db"


class PrivateServer:
    """A server of scripts/db in a folder of its own; a context manager that starts it."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        """Takes where its data goes; it is as durable as it was shipped."""
        self.kind = kind
        self._folder = folder
        self.url = ""
        self._environment = {**os.environ, "HALFMQ_DB_DIR": str(folder)}
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

    def freeze(self) -> None:
        """SIGSTOP: it takes connections, as its kernel does, and answers nothing."""
        os.kill(self._process, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._process, signal.SIGCONT)

    @property
    def _process(self) -> int:
        return int((self._folder / self.kind / "pid").read_text().split()[0])

    def _run(self, command: str) -> str:
        done = subprocess.run(
            [_SCRIPT, command, self.kind],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode != 0:
            message = f"scripts/db {command} {self.kind} failed:\n{done.stderr}"
            if self.url or in_ci():
                pytest.fail(message, pytrace=False)
            pytest.skip(message)
        return done.stdout

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops it."""
        self.stop()
