"""Ending soon: whoever waits for an answer when it is to stop waits some seconds more, and then gives up."""

from __future__ import annotations

import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Coroutine
    from concurrent.futures import Future

    from client_core.connection import BackgroundRunner

__all__ = ["Ending", "Patience", "PatientRunner", "Runs"]

ResultT = TypeVar("ResultT")

_GRACE = 3.0
"""Seconds that what is under way has to end."""
_LOOK = 0.1


class Ending(Exception):
    """It is to stop, and an answer does not come: as if it had been killed here, it goes on from its position."""


class Patience:
    """How long to wait: until it is to stop, and some seconds more, which begin when that is first noticed."""

    def __init__(self, stopping: threading.Event) -> None:
        """Takes what tells that it is to stop."""
        self._stopping = stopping
        self._until: float | None = None

    def check(self) -> None:
        """Checks that there is some left.

        Raises:
            Ending: There is none.
        """
        if not self._stopping.is_set():
            return
        if self._until is None:
            self._until = time.monotonic() + _GRACE
        elif time.monotonic() >= self._until:
            raise Ending

    def result(self, future: Future[ResultT]) -> ResultT:
        """Waits for a result.

        Raises:
            Ending: It does not come in time.
        """
        while not wait([future], _LOOK).done:
            self.check()
        return future.result()


class Runs(Protocol):
    """Runs coroutines; BackgroundRunner does."""

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine, and waits for its result."""
        ...


class PatientRunner:
    """Runs coroutines on a background loop, as long as there is patience."""

    def __init__(self, runner: BackgroundRunner, patience: Patience) -> None:
        """Takes the loop."""
        self._runner, self._patience = runner, patience

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine, and waits for its result.

        Raises:
            Ending: It does not come in time.
        """
        future = self._runner.submit(coroutine)
        try:
            return self._patience.result(future)
        except BaseException:
            future.cancel()
            raise
