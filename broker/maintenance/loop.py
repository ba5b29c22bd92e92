"""Base of all loops."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from broker.errors import BrokerError, RowsLocked, StorageUnavailable
from broker.ports.observer import NO_OBSERVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

logger = logging.getLogger("halfmq.maintenance")


class Loop(ABC):
    """Calls `run_once` repeatedly, every `interval` seconds, or sooner when poked.

    Attributes:
        observer: notified of every round.
    """

    name = "loop"

    def __init__(self, interval: float) -> None:
        """Takes the seconds between two rounds."""
        self.interval = interval
        self.observer = NO_OBSERVER
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> None:
        """One round."""

    def start(self) -> None:
        """Starts, with a first round at once."""
        self._task = asyncio.create_task(self._run(), name=f"halfmq-{self.name}")

    async def stop(self) -> None:
        """Stops; a round in flight is abandoned, which every round must survive."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def run_piece(self, what: str, piece: Callable[[], Awaitable[object]], **about: object) -> None:
        """Runs a part of a round, whose failure ends neither the round nor the loop.

        Args:
            what: the part, as the log names it.
            piece: runs it.
            about: what a log line about it is about, such as a topic; keys of their own in JSON.

        Raises:
            StorageUnavailable: the database is unreachable, so the other parts would fail as well.
        """
        try:
            await piece()
        except Exception as error:
            if isinstance(error, StorageUnavailable) and not isinstance(error, RowsLocked):
                raise
            self._report(f"{self.name}, {what}", error, about)
            self.observer.piece_failed(self.name)

    def _report(self, what: str, error: Exception, about: Mapping[str, object] | None = None) -> None:
        if isinstance(error, RowsLocked) or (
            isinstance(error, BrokerError) and not isinstance(error, StorageUnavailable)
        ):
            logger.warning("%s: %s", what, error.message, extra=about)
        elif isinstance(error, StorageUnavailable):
            # The storage logs outages of the database, once for all users.
            logger.debug("%s: %s", what, error.message, extra=about)
        else:
            logger.error("%s failed; it goes on with the next round", what, exc_info=error, extra=about)

    def poke(self) -> None:
        """Starts the next round now."""
        self._poked.set()

    async def _run(self) -> None:
        while True:
            self._poked.clear()
            began, failed = time.monotonic(), None
            try:
                await self.run_once()
            except Exception as error:
                failed = error
                self._report(self.name, error)
            self.observer.round_ended(self.name, time.monotonic() - began, failed)
            del failed
            try:
                async with asyncio.timeout(self.interval):
                    await self._poked.wait()
            except TimeoutError:
                continue
