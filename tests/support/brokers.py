"""Broker processes for tests: `halfmq serve` as users start it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from support.forking import ForkedCommand

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

START_SECONDS = 60.0
STOP_SECONDS = 30.0

_CHECKOUT = Path(__file__).parents[2]


class BrokerProcess:
    """A running broker; its log is kept and can be waited on."""

    def __init__(self, database: str, variables: Mapping[str, str] | None = None, /, **settings: object) -> None:
        """Starts it and waits until it serves.

        Args:
            database: URL of the database; empty: it is in the variables, or in a file that the settings name. One of a
                server, which has a password, goes into the environment: the broker warns of it among the arguments.
            variables: HALFMQ_ variables of its environment.
            settings: further options of `halfmq serve`, such as check_interval=0.2; True and False are switches. And
                `folder`, which it runs in.
        """
        self.database = database
        self._variables = variables or {}
        self._folder = str(settings.pop("folder", _CHECKOUT))
        options = {"listen": "127.0.0.1:0", "drain": 2, **settings}
        self.arguments = ["serve"]
        if database.startswith("sqlite"):
            self.arguments.append(f"--database={database}")
        elif database:
            self._variables = {"HALFMQ_DATABASE": database, **self._variables}
        self.arguments += [_option(name, value) for name, value in options.items()]
        self.lines: list[str] = []
        self._said = threading.Condition()
        self.endpoint = ""
        self.admin_endpoint = ""
        self.metrics_endpoint = ""
        self._has_two = "admin_listen" in settings
        self._has_metrics = "metrics_listen" in settings
        self.console_endpoint = ""
        self._has_console = "console_listen" in settings
        self._launch()

    def _launch(self) -> None:
        self.process = self._started()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        watchdog = threading.Timer(START_SECONDS, self.process.kill)
        watchdog.start()
        self.endpoint = self.process.stdout.readline().strip()
        if self._has_two and self.endpoint:
            self.admin_endpoint = self.process.stdout.readline().strip()
        if self._has_metrics and self.endpoint:
            self.metrics_endpoint = self.process.stdout.readline().strip()
        if self._has_console and self.endpoint:
            self.console_endpoint = self.process.stdout.readline().strip()
        watchdog.cancel()
        if not self.endpoint:
            self.process.wait(STOP_SECONDS)
            self.close()
            pytest.fail(f"the broker did not start: {' '.join(self.arguments)}\n{self.log}", pytrace=False)

    def _started(self) -> ForkedCommand:
        return ForkedCommand(self.arguments, self._variables, self._folder)

    def _read_log(self) -> None:
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._said.notify_all()

    @property
    def log(self) -> str:
        """What it wrote on standard error so far."""
        with self._said:
            return "\n".join(self.lines)

    def count(self, *words: str) -> int:
        """How many lines of the log have all these words."""
        with self._said:
            return sum(all(word in line for word in words) for line in self.lines)

    def await_log(self, *words: str, seconds: float = 30.0) -> None:
        """Waits until a line of the log has all these words."""
        until = time.monotonic() + seconds
        with self._said:
            while not any(all(word in line for word in words) for line in self.lines):
                left = until - time.monotonic()
                if left <= 0 or not self._said.wait(left):
                    pytest.fail(f"no line with {words} in the broker's log:\n" + "\n".join(self.lines))

    def kill(self) -> None:
        """SIGKILL: as a crash or the kernel would end it."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> int:
        """SIGTERM, and waits; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the broker did not stop within {STOP_SECONDS} s of SIGTERM:\n{self.log}", pytrace=False)
        self._reader.join(STOP_SECONDS)
        return status

    def close(self) -> None:
        """Ends it in whatever state it is, and gives the pipes back."""
        if self.process.poll() is None:
            self.stop()
        self._reader.join(STOP_SECONDS)
        if self.count("[error"):
            sys.stderr.write(f"{self.log}\n")  # pytest shows it with the failure
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()

    def __enter__(self) -> Self:
        """Is running already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it."""
        self.close()


def _option(name: str, value: object) -> str:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option}={value}"
