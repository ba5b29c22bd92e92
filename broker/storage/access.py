"""What every part of the store works with: the database's time, the names, and threads for single look-ups."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from broker.storage.clock import DatabaseClock
from broker.storage.directory import Directory
from broker.storage.group_commit import LaneConfig, Redo, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine import Database
    from broker.storage.session import Session

Result = TypeVar("Result")

LOOK_UP_THREADS = 3
EPOCH_THREADS = 2
JUDGING_THREADS = 2


class Access:
    """A database as the parts of the store reach it."""

    def __init__(
        self,
        database: Database,
        *,
        broker_id: str,
        lanes: LaneConfig | None = None,
        clock: DatabaseClock | None = None,
    ) -> None:
        """Takes the database, this broker's name, bounds of the group commit, and the database's time."""
        self.clock = clock or DatabaseClock()
        self.directory = Directory()
        self._database = database
        self._broker_id = broker_id
        self._lanes = lanes or LaneConfig()
        self._turns = itertools.count()
        self._look_ups = _LookUps(database, self._lanes.patience, LOOK_UP_THREADS)
        # What wakes those who wait must not wait behind a slow look-up.
        self._watches = _LookUps(database, self._lanes.patience, 1)
        # Filters judge there: one that is slow holds up others of its kind, and nobody else.
        self._judgements = _LookUps(database, self._lanes.patience, JUDGING_THREADS)
        # A large epoch takes minutes; a second thread lets small ones pass.
        self._epochs = _LookUps(database, self._lanes.patience, EPOCH_THREADS)

    async def _read(self, work: Callable[[Session], Result]) -> Result:
        return await self._look_ups.run(work, write=False)

    async def _judged(self, work: Callable[[Session], Result]) -> Result:
        """Reads what a filter has to judge."""
        return await self._judgements.run(work, write=False)

    async def _watch(self, work: Callable[[Session], Result]) -> Result:
        """Reads what somebody is to be woken for."""
        return await self._watches.run(work, write=False)

    async def _write(self, work: Callable[[Session], Result], redo: Redo[Result] | None = None) -> Result:
        return await self._look_ups.run(work, write=True, redo=redo)

    async def _decide_epoch(self, work: Callable[[Session], Result], redo: Redo[Result] | None = None) -> Result:
        """Changes as much as an epoch has, while look-ups go on."""
        return await self._epochs.run(work, write=True, redo=redo)


class _LookUps:
    """A few threads, each with a connection of its own, for work that is not merged."""

    def __init__(self, database: Database, patience: float, threads: int) -> None:
        self._database = database
        self._patience = patience
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="halfmq-look-up")
        self._free: dict[bool, list[Worker]] = {True: [], False: []}

    async def run(self, work: Callable[[Session], Result], *, write: bool, redo: Redo[Result] | None = None) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._transact, work, write, redo)

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)
        for free in self._free.values():
            for worker in free:
                worker.close()
            free.clear()

    def _transact(self, work: Callable[[Session], Result], write: bool, redo: Redo[Result] | None) -> Result:
        # What only reads has connections of its own, where no transaction has to be ended.
        free = self._free[write]
        worker = free.pop() if free else Worker(self._database, patience=self._patience, reading=not write)
        try:
            return worker.transact(work, write=write, redo=redo)
        finally:
            free.append(worker)
