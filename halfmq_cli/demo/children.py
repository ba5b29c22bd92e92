"""The demo's child processes, from the parent's side.

A child reads its settings as one JSON line from standard input, reports events as JSON lines on standard output, and
ends when its standard input does: it cannot outlive its parent. Its log goes to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from broker.errors import BrokerError
from halfmq_cli.children import environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
LINE_LIMIT = 1 << 20

Event: TypeAlias = dict[str, Any]


class DemoFailed(BrokerError):
    """The demo could not be completed; the text has its progress."""

    def __init__(self, message: str) -> None:
        """Takes the error text."""
        super().__init__(message, reason="DEMO_FAILED")


@dataclass
class Child:
    """A process of the demo's own code.

    Attributes:
        name: what to call it.
        log: its log file.
        process: the process.
        finished: set when it has reported "finished": its work is done, it may still answer checks.
    """

    name: str
    log: Path
    process: asyncio.subprocess.Process
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, module: str, name: str, folder: Path, settings: Event, on_event: Callable[[Event], None]
    ) -> Self:
        """Starts a module of this package.

        Args:
            module: its name, such as "order_service".
            name: name of the process.
            folder: folder of its log.
            settings: its settings.
            on_event: called with its events.
        """
        path = folder / f"{name}.log"
        with path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"{__package__}.services.{module}"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
                limit=LINE_LIMIT,
            )
        child = cls(name, path, process)
        child._reader = asyncio.create_task(child._read(on_event))
        child._write(json.dumps({"client_id": name, **settings}).encode() + b"\n")
        return child

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None  # noqa: S101 - requested above
        self.process.stdin.write(line)

    async def _read(self, on_event: Callable[[Event], None]) -> None:
        assert self.process.stdout is not None  # noqa: S101 - requested above
        # A process that is killed may leave half a line.
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                event = json.loads(line)
                if event["event"] == "finished":
                    self.finished.set()
                on_event(event)

    async def died(self) -> int:
        """Waits until the process has ended and its output was read; returns its exit status, negative for a signal."""
        status = await self.process.wait()
        if self._reader is not None:
            await self._reader
        return status

    async def done(self) -> None:
        """Waits until it has reported "finished".

        Raises:
            DemoFailed: it ended before.
        """
        finished, died = asyncio.create_task(self.finished.wait()), asyncio.create_task(self.died())
        await asyncio.wait((finished, died), return_when=asyncio.FIRST_COMPLETED)
        finished.cancel()
        died.cancel()
        if not self.finished.is_set():
            raise self._failed(f"ended before its work was done, with status {self.process.returncode}")

    async def killed(self) -> None:
        """Waits until it has been killed, as planned.

        Raises:
            DemoFailed: it ended in another way.
        """
        status = await self.died()
        if status != -signal.SIGKILL:
            raise self._failed(f"was to be killed by SIGKILL, but ended with status {status}")

    async def stop(self) -> None:
        """Ends it gracefully.

        Raises:
            DemoFailed: it did not end, or not gracefully.
        """
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                status = await self.died()
        except TimeoutError:
            raise self._failed(f"did not end within {STOP_TIMEOUT:.0f} s") from None
        if status != 0:
            raise self._failed(f"ended with status {status}")

    def _failed(self, what: str) -> DemoFailed:
        words = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        return DemoFailed(f"{self.name} {what}." + (f" Its last words: {words}" if words else ""))

    async def destroy(self) -> None:
        """Kills it if it still runs; for clean-up."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.died()


class BrokerChild:
    """`halfmq serve`, as users run it."""

    def __init__(self, database: str, folder: Path, *, first_check: float, check_interval: float) -> None:
        """Takes the settings; `async with` starts it."""
        self.endpoint = ""
        self._database = database
        self._folder = folder
        self._options = ["--listen=127.0.0.1:0", "--no-auto-create", "--drain=2", "--log-level=warning"]
        self._options += [f"--first-check={first_check}", f"--check-interval={check_interval}"]

    async def __aenter__(self) -> Self:
        """Starts it and waits until it serves.

        Raises:
            DemoFailed: it did not start; with its error.
        """
        with (self._folder / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "halfmq_cli", "serve", *self._options),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(HALFMQ_DATABASE=self._database),
                # Ctrl-C in the terminal is for the demo, which still needs the broker for clean-up.
                process_group=0,
            )
        assert self._process.stdout is not None  # noqa: S101 - requested above
        try:
            async with asyncio.timeout(START_TIMEOUT):
                self.endpoint = (await self._process.stdout.readline()).decode().strip()
        except TimeoutError:
            self._process.kill()
        except BaseException:
            self._process.kill()
            raise
        if not self.endpoint:
            await self._process.wait()
            words = (self._folder / "broker.log").read_text(errors="replace").strip()
            raise DemoFailed(f"The broker did not start. {words.removeprefix('halfmq: ')}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Drains and ends it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
