"""`halfmq admin` against a broker: in this process, in one of its own, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from typer.testing import CliRunner

from halfmq_cli.commands import app

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

CHECKOUT = Path(__file__).parents[2]
_SECONDS = 30.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        """What it wrote, by lines."""
        return self.output.splitlines()

    @property
    def objects(self) -> list[Any]:
        """What it wrote, as JSON."""
        return [json.loads(line) for line in self.lines]

    def refused(self, status: int, *words: str) -> None:
        """Asserts that it ended with this status and one line on standard error, which has these words."""
        assert self.status == status, self
        assert self.output == "", self
        (line,) = self.errors.splitlines()
        assert line.startswith("halfmq: "), line
        for word in words:
            assert word in line, line


class AdminCommand:
    """The command with a broker's endpoint."""

    def __init__(self, endpoint: str, folder: Path, **variables: str) -> None:
        """Takes where the broker listens, a folder for contexts, and further variables of the environment."""
        self.variables = {
            "HALFMQ_ENDPOINT": endpoint,
            "HALFMQ_CONTEXTS": str(folder / "contexts.toml"),
            "COLUMNS": "200",
            **variables,
        }

    def __call__(self, *arguments: object, given: str | None = None) -> Ran:
        """Runs it in this process, without a terminal."""
        ran = CliRunner().invoke(app, ["admin", *map(str, arguments)], input=given, env=self.variables)
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    def done(self, *arguments: object, given: str | None = None) -> Ran:
        """Runs it, which must work."""
        ran = self(*arguments, given=given)
        assert ran.status == 0, ran
        return ran

    def found(self, *arguments: object) -> list[Any]:
        """Runs it with --json, which must work."""
        return self.done(*arguments, "--json").objects

    def started(self, *arguments: object, **settings: Any) -> subprocess.Popen[str]:
        """Starts it in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "halfmq_cli", "admin", *map(str, arguments)],
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "stdin": subprocess.DEVNULL,
                "text": True,
                "env": environment(self.variables),
                "cwd": CHECKOUT,
                **settings,
            },
        )

    def on_terminal(self, *arguments: object) -> Terminal:
        """Starts it on a terminal of its own."""
        return Terminal(["admin", *map(str, arguments)], self.variables)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command: these HALFMQ_ variables and no others."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("HALFMQ_")}
    paths = [str(CHECKOUT), str(CHECKOUT / "proto" / "gen"), own.get("PYTHONPATH", "")]
    return {**own, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **variables}


class Terminal:
    """A command on a pseudo terminal; a context manager that ends it."""

    def __init__(self, arguments: list[str], variables: Mapping[str, str]) -> None:
        """Starts it."""
        self._terminal, its = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "halfmq_cli", *arguments],
            stdin=its,
            stdout=its,
            stderr=its,
            env=environment({**variables, "TERM": "xterm", "LINES": "50"}),
            cwd=CHECKOUT,
            start_new_session=True,
        )
        os.close(its)
        self.raw = ""

    @property
    def text(self) -> str:
        """What was shown so far, without escapes for colours and the cursor."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def await_text(self, *words: str) -> None:
        """Waits until all of these were shown."""
        until = time.monotonic() + _SECONDS
        while not all(word in self.text for word in words):
            assert time.monotonic() < until, self.text
            assert self._read(), f"it ended with {self._process.wait()}:\n{self.text}"

    def enter(self, text: str) -> None:
        """Types something."""
        os.write(self._terminal, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        """Waits for the end; its status."""
        while self._read():
            pass
        return self._process.wait(_SECONDS)

    def _read(self) -> bool:
        """Reads what is there, within a second; whether it goes on."""
        if not select.select([self._terminal], [], [], 1.0)[0]:
            return self._process.poll() is None
        try:
            found = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux: its end was closed
            return False
        self.raw += found.decode(errors="replace")
        return bool(found)

    def __enter__(self) -> Self:
        """Is running."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it in whatever state it is."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_SECONDS)
        os.close(self._terminal)
