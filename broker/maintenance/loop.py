"""The frame of every loop."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from broker.errors import BrokerError

logger = logging.getLogger("halfmq.maintenance")


class Loop(ABC):
    """Calls `run_once` again and again, at most every `interval` seconds, or sooner when poked."""

    name = "loop"

    def __init__(self, interval: float) -> None:
        """Takes the seconds between two rounds."""
        self.interval = interval
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> None:
        """One round."""

    def start(self) -> None:
        """Begins, with a first round at once."""
        self._task = asyncio.create_task(self._run(), name=f"halfmq-{self.name}")

    async def stop(self) -> None:
        """Ends; a round that is under way is abandoned, which every round survives."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def poke(self) -> None:
        """Has the next round begin now."""
        self._poked.set()

    async def _run(self) -> None:
        while True:
            self._poked.clear()
            try:
                await self.run_once()
            except BrokerError as error:
                logger.warning("%s: %s", self.name, error.message)
            except Exception:
                logger.exception("%s failed; it goes on with the next round", self.name)
            try:
                async with asyncio.timeout(self.interval):
                    await self._poked.wait()
            except TimeoutError:
                continue
