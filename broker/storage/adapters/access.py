"""Shared by all parts of the store: the database's clock, the directory, and threads for single look-ups."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from broker.domain.check_policy import CheckPolicy
from broker.errors import RowsLocked, StorageUnavailable
from broker.storage.catalog.directory import Directory
from broker.storage.engine.clock import DatabaseClock
from broker.storage.engine.fair_semaphore import FairSemaphore
from broker.storage.engine.group_commit import LATE, Lane, LaneConfig
from broker.storage.engine.transaction_runner import RETRIES_AFTER_ROLLBACK, SHORTEST_TIMEOUT, Redo, TransactionRunner
from broker.storage.log.queue_ends import QueueEnds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Sequence

    from broker.errors import BrokerError
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

Result = TypeVar("Result")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

LOOK_UP_THREADS = 3
CHANGE_THREADS = 3
EPOCH_THREADS = 2
LONG_EPOCH_THREADS = 3
FORWARDING_THREADS = 2
JUDGING_THREADS = 2


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of the storage.

    Attributes:
        broker_id: this broker's name, for the check history and maintenance.
        policy: times of checks.
        lanes: bounds of the group commit.
        clock: the database's time.
        keep_history: record what is delivered and settled, for the timeline of messages.
    """

    broker_id: str
    policy: CheckPolicy = field(default_factory=CheckPolicy)
    lanes: LaneConfig = field(default_factory=LaneConfig)
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    keep_history: bool = True


class Access:
    """The parts' access to a database."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        """Takes the database and the settings; connections are made when first used."""
        self.clock = config.clock
        self.directory = Directory()
        self.ends = QueueEnds(database.known_ends)
        self._database = database
        self._broker_id = config.broker_id
        self._lanes = config.lanes
        self._open_lanes: list[Lane[Any, Any]] = []
        self._rotations = itertools.count()
        self._look_ups = _LookUps(database, self._lanes.reconnect_timeout, LOOK_UP_THREADS)
        # A change may wait for a row that another session holds; look-ups have separate threads.
        self._changes = _LookUps(database, self._lanes.reconnect_timeout, CHANGE_THREADS)
        # Queries for wake-ups must not wait behind a slow look-up.
        self._watches = _LookUps(database, self._lanes.reconnect_timeout, 1)
        # Filters are evaluated here: a slow one delays only other filters.
        self._judgements = _LookUps(database, self._lanes.reconnect_timeout, JUDGING_THREADS)
        # Cheap ones do not wait for many slow ones: the party that used least time of these threads is next.
        self._judging_slots = FairSemaphore(JUDGING_THREADS)
        # A large epoch takes minutes, and one that needs rows of another session may wait as long: they have separate
        # threads. In turns, so that a sink with many calls delays no other one.
        self._epochs = _LookUps(
            database, self._lanes.reconnect_timeout, EPOCH_THREADS, awaited=False, lock_wait=1, lock_waits=1
        )
        self._long_epochs = _LookUps(database, self._lanes.reconnect_timeout, LONG_EPOCH_THREADS, awaited=False)
        self._epoch_slots = FairSemaphore(EPOCH_THREADS, most_of_one=1)
        self._long_epoch_slots = FairSemaphore(LONG_EPOCH_THREADS, most_of_one=1)
        # Background work must not delay callers' work; it is repeated in the next round if rows are locked.
        self._chores = _LookUps(database, self._lanes.reconnect_timeout, 1, awaited=False, lock_wait=1, lock_waits=1)

        # Sends with acks may wait for a queue, for a moment, and delay no other change by that.
        self._forwarding = _LookUps(
            database, self._lanes.reconnect_timeout, FORWARDING_THREADS, lock_wait=1, lock_waits=1
        )
        self._forwarding_slots = FairSemaphore(FORWARDING_THREADS)
        # Large ones leave a thread to the others.
        self._large_forwarding_slots = FairSemaphore(FORWARDING_THREADS - 1)
        self._primary_thread = ThreadPoolExecutor(1, thread_name_prefix="halfmq-primary-watch")
        # Submissions are read and released one part after the other, apart from the slower chores.
        self._submitting = _LookUps(
            database, self._lanes.reconnect_timeout, 1, awaited=False, lock_wait=1, lock_waits=1
        )

    def _lane(
        self,
        name: str,
        work: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]],
        *,
        skip_locked: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]] | None = None,
        settled: Callable[[Item, Outcome | BrokerError], None] | None = None,
        size_of: Callable[[Item], int] | None = None,
    ) -> Lane[Item, Outcome]:
        """A lane that is closed with the store."""
        lane: Lane[Item, Outcome] = Lane(
            name,
            self._database,
            work,
            skip_locked=skip_locked,
            settled=settled,
            size_of=size_of,
            config=self._lanes,
        )
        self._open_lanes.append(lane)
        return lane

    @property
    def lanes(self) -> list[Lane[Any, Any]]:
        """All lanes."""
        return list(self._open_lanes)

    @property
    def is_away(self) -> bool:
        """Whether the database could not be used when it was last tried."""
        return self._database.availability.away

    async def _close_access(self) -> None:
        """Waits for submitted work, then closes all connections."""
        for lane in self._open_lanes:
            await lane.close()
        for slots in (
            self._judging_slots,
            self._epoch_slots,
            self._long_epoch_slots,
            self._forwarding_slots,
            self._large_forwarding_slots,
        ):
            slots.close()
        for threads in (
            self._look_ups,
            self._changes,
            self._judgements,
            self._watches,
            self._epochs,
            self._long_epochs,
            self._chores,
            self._forwarding,
            self._submitting,
        ):
            await threads.close()
        self._primary_thread.shutdown(wait=False)

    async def _read(self, work: Callable[[Session], Result]) -> Result:
        return await self._look_ups.run(work, write=False)

    async def _judged(self, work: Callable[[Session], Result], who: Hashable) -> Result:
        """Reads messages for a filter, when it is the turn of the group, or of the topic's readers.

        Raises:
            StorageUnavailable: its turn did not come in time.
        """
        refusal = "Too many filters are at work; nothing was changed, try again."
        async with self._turn(self._judging_slots, who, refusal):
            return await self._judgements.run(work, write=False)

    @asynccontextmanager
    async def _turn(self, slots: FairSemaphore, who: Hashable, refusal: str) -> AsyncIterator[None]:
        """Waits for a turn of this party, as long as for a thread."""
        async with AsyncExitStack() as during:
            try:
                async with asyncio.timeout(max(self._lanes.reconnect_timeout + LATE, SHORTEST_TIMEOUT)):
                    await during.enter_async_context(slots.turn(who))
            except TimeoutError:
                raise StorageUnavailable(refusal) from None
            yield

    async def _watch(self, work: Callable[[Session], Result]) -> Result:
        """Runs a query for wake-ups."""
        return await self._watches.run(work, write=False)

    async def _write(self, work: Callable[[Session], Result], redo: Redo[Result] | None = None) -> Result:
        return await self._changes.run(work, write=True, redo=redo)

    async def _clean(self, work: Callable[[Session], Result]) -> Result:
        """Runs background changes that no caller waits for.

        Raises:
            RowsLocked: another session holds a needed row; the next round retries.
        """
        return await self._chores.run(work, write=True)

    async def _glance(self, work: Callable[[Session], Result]) -> Result:
        """Runs a query that no caller waits for."""
        return await self._chores.run(work, write=False)

    async def _decide_epoch(
        self, sink: str, work: Callable[[Session], Result], redo: Redo[Result] | None = None, *, long: bool = False
    ) -> Result:
        """Runs the changes of an epoch, without blocking look-ups, or the epochs of other sinks."""
        in_doubt: list[Result] = []
        # With a single writer the rows of others are those of all.
        if not long and not self._database.dialect.one_writer:
            with suppress(RowsLocked):
                return await self._of_sink(sink, self._epoch_slots, self._epochs, work, redo, in_doubt)
        return await self._of_sink(sink, self._long_epoch_slots, self._long_epochs, work, redo, in_doubt)

    async def _of_sink(
        self,
        sink: str,
        slots: FairSemaphore,
        threads: _LookUps,
        work: Callable[[Session], Result],
        redo: Redo[Result] | None,
        in_doubt: list[Result],
    ) -> Result:
        """Runs it when it is the sink's turn, which lasts as long as the thread works, also for a caller that left."""
        during = AsyncExitStack()
        await during.enter_async_context(slots.turn(sink))

        async def run() -> Result:
            async with during:
                return await threads.run(work, write=True, redo=redo, in_doubt=in_doubt)

        running = asyncio.ensure_future(run())
        # Nobody may be left to be told.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(running)

    async def _forward(self, work: Callable[[Session], Result], who: Hashable, *, large: bool) -> Result:
        """Runs a send with acks.

        Raises:
            RowsLocked: another session holds a needed row.
            StorageUnavailable: its turn did not come in time.
        """
        refusal = "Too many sends with acks wait for the database; nothing was changed, try again."
        async with AsyncExitStack() as during:
            if large:
                await during.enter_async_context(self._turn(self._large_forwarding_slots, who, refusal))
            await during.enter_async_context(self._turn(self._forwarding_slots, who, refusal))
            return await self._forwarding.run(work, write=True)


_Given: TypeAlias = "tuple[Callable[[Session], Result], Redo[Result] | None, list[Result] | None]"


class _Job(Generic[Result]):
    """Work that waits for a thread; it is let go of when it is taken or cancelled."""

    __slots__ = ("_work",)

    def __init__(
        self, work: Callable[[Session], Result], redo: Redo[Result] | None, in_doubt: list[Result] | None
    ) -> None:
        self._work: _Given[Result] | None = (work, redo, in_doubt)

    def take(self) -> _Given[Result]:
        assert self._work is not None  # noqa: S101 - a cancelled future does not run
        given, self._work = self._work, None
        return given

    def clear(self) -> None:
        self._work = None


class _LookUps:
    """A few threads, each with its own connection, for work that is not batched."""

    def __init__(
        self,
        database: Database,
        reconnect_timeout: float,
        threads: int,
        *,
        awaited: bool = True,
        lock_wait: int | None = None,
        lock_waits: int = RETRIES_AFTER_ROLLBACK,
    ) -> None:
        self._database = database
        self._reconnect_timeout = reconnect_timeout
        self._awaited = awaited
        self._lock_wait = lock_wait
        self._lock_waits = lock_waits
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="halfmq-look-up")
        self._free: dict[bool, list[TransactionRunner]] = {True: [], False: []}

    async def run(
        self,
        work: Callable[[Session], Result],
        *,
        write: bool,
        redo: Redo[Result] | None = None,
        in_doubt: list[Result] | None = None,
    ) -> Result:
        loop = asyncio.get_running_loop()
        job = _Job(work, redo, in_doubt)
        waiting = self._executor.submit(self._transact, job, write)
        # The executor keeps what was cancelled until a thread is free; its messages are not held for so long.
        waiting.add_done_callback(lambda _: job.clear())
        if not self._awaited:
            return await asyncio.wrap_future(waiting, loop=loop)
        # Its timeout also applies while queued behind others. Running work ends by itself.
        timer = loop.call_later(max(self._reconnect_timeout + LATE, SHORTEST_TIMEOUT), waiting.cancel)
        answer = asyncio.wrap_future(waiting, loop=loop)
        try:
            return await answer
        except asyncio.CancelledError:
            if waiting.cancelled() and not _is_cancelled():
                raise StorageUnavailable("The database does not answer; nothing was changed, try again.") from None
            raise
        finally:
            timer.cancel()

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)
        for free in self._free.values():
            for runner in free:
                runner.close()
            free.clear()

    def _transact(self, job: _Job[Result], write: bool) -> Result:
        work, redo, in_doubt = job.take()
        # Read-only work has separate connections, without transactions to end.
        free = self._free[write]
        runner = free.pop() if free else self._runner(reading=not write)
        try:
            return runner.transact(work, write=write, redo=redo, lock_waits=self._lock_waits, in_doubt=in_doubt)
        finally:
            free.append(runner)

    def _runner(self, *, reading: bool) -> TransactionRunner:
        return TransactionRunner(
            self._database,
            reconnect_timeout=self._reconnect_timeout,
            reading=reading,
            awaited=self._awaited,
            lock_wait=self._lock_wait,
        )


def _is_cancelled() -> bool:
    """Whether the current task was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
