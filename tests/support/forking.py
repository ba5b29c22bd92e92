"""`halfmq serve` in processes forked from one that has loaded the broker's modules: a start without most of its cost.

They are processes like any other: with a memory of their own, nothing open but what they open, and killed one by one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOADED = ["halfmq_cli", "halfmq_cli.commands", "halfmq_cli.serve", "typer._adapters"]
"""The last one is what Typer loads for its first option; a version without it is as good."""


class ForkedCommand:
    """The command `halfmq` with these arguments; to be used as subprocess.Popen is."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
        """Starts it in a folder, with these HALFMQ_ variables and no others."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_LOADED)
        out, its_out = context.Pipe(duplex=False)
        err, its_err = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(list(arguments), dict(variables), folder, its_out, its_err))
        self._process.start()
        for end in (its_out, its_err):
            end.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in (out, err))
        for end in (out, err):
            end.close()
        self.pid = self._process.pid or 0
        self._reading = threading.Lock()

    @property
    def returncode(self) -> int | None:
        """Its exit status when it has ended; minus the signal that ended it."""
        return self.poll()

    def poll(self) -> int | None:
        """As `returncode`."""
        with self._reading:  # of two threads that read the status at a time, one would find none
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end, in seconds at most.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        connection.wait([self._process.sentinel], timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("halfmq", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: list[str],
    variables: dict[str, str],
    folder: str,
    out: connection.Connection,
    err: connection.Connection,
) -> None:
    """In the new process."""
    from halfmq_cli import main  # only there

    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("HALFMQ_")]:
        del os.environ[name]
    os.environ.update(variables)
    sys.argv = ["halfmq", *arguments]
    main()
