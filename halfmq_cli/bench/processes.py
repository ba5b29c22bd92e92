"""The processes of a benchmark: brokers, and clients that follow commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from broker.errors import ConfigurationError
from halfmq_cli.children import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from signal import Signals

START_TIMEOUT = 30

HALFMQ = [sys.executable, "-m", "halfmq_cli"]
_CLIENT = [sys.executable, "-m", "halfmq_cli.bench.clients"]
_SERVE = ["--listen", "127.0.0.1:0", "--auto-create", "--log-level", "warning"]


def cpu_seconds_of(pid: int) -> float:
    """Processor time that a process used so far, with its threads that have ended, in nanoseconds' steps."""
    # What clock_getcpuclockid(3) returns: Python has no function for it.
    return time.clock_gettime(~pid << 3 | 2)


def _children_of(pid: int) -> list[int]:
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text(encoding="ascii").split()
    ]


class BrokerProcess:
    """A broker on a database; a context manager."""

    def __init__(self, url: str, *options: str, variant: str = "") -> None:
        """Takes the database, further options of the command, and a module of this package to run in its place."""
        self._command = [*HALFMQ, "serve", *_SERVE, *options]
        if variant:
            self._command = [sys.executable, "-m", f"halfmq_cli.bench.{variant}", *options]
        self._environment = environment(HALFMQ_DATABASE=url)
        self.endpoint = self.console_endpoint = ""
        self._has_console = any(option.startswith("--console-listen") for option in options)

    def __enter__(self) -> Self:
        """Starts it.

        Raises:
            ConfigurationError: It did not start.
        """
        self._process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.PIPE, text=True)
        self.endpoint = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not self.endpoint:
            self._process.wait(START_TIMEOUT)
            raise ConfigurationError("The broker did not start; its error is above.", field="database")
        if self._has_console and self._process.stdout:
            self.console_endpoint = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self._process.terminate()
        self._process.wait(START_TIMEOUT)

    def tell(self, number: Signals) -> None:
        """Sends a signal."""
        self._process.send_signal(number)

    def cpu_seconds(self) -> float:
        """Processor time that it used so far, with its workers."""
        return sum(map(cpu_seconds_of, [self._process.pid, *_children_of(self._process.pid)]))

    def memory_mb(self) -> float:
        """Memory that it holds now, with its workers; 10^6 bytes."""
        pages = [
            int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            for pid in [self._process.pid, *_children_of(self._process.pid)]
        ]
        return round(sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


@contextmanager
def running(*arguments: str, **settings: str) -> Iterator[None]:
    """A further command of halfmq, with variables of its environment."""
    # A file, not a pipe: nobody reads while it runs.
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([*HALFMQ, *arguments], env={**environment(), **settings}, stderr=told)
        try:
            yield
        finally:
            process.terminate()
            if process.wait(START_TIMEOUT):
                told.seek(0)
                sys.stderr.write(told.read().decode())


def checked(*arguments: str, **settings: str) -> None:
    """Runs a further command of halfmq that only looks.

    Raises:
        ConfigurationError: It found something wrong.
    """
    done = subprocess.run(
        [*HALFMQ, *arguments], env={**environment(), **settings}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigurationError(done.stderr.strip().removeprefix("halfmq: "), field=arguments[0])


class Client:
    """A client process; see halfmq_cli/bench/clients/__main__.py. A context manager."""

    def __init__(self, role: str, endpoint: str, **options: Any) -> None:
        """Takes a role, the broker, the role's options, and optionally another home folder."""
        self._role = role
        home = options.pop("home", None)
        self._environment = None if home is None else {**os.environ, "HOME": home}
        self._command = [*_CLIENT, role, endpoint, json.dumps(options)]

    def __enter__(self) -> Self:
        """Starts it, and waits until it is ready."""
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.hear()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._end()

    def ask(self, request: Any) -> dict[str, Any]:
        """Sends a request; returns the answer."""
        self.tell(request)
        answer: dict[str, Any] = self.hear()
        return answer

    def tell(self, request: Any) -> None:
        """Sends a request whose answer is read later."""
        if self._process.stdin is None:
            raise RuntimeError("no pipe")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        """Waits for an answer.

        Raises:
            ConfigurationError: The process failed.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise ConfigurationError(f"The {self._role} failed; its error is above.", field="bench")
        return json.loads(line)

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()
