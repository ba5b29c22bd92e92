"""Group commit: waiting work is batched into one database transaction while the previous one runs.

A lane has one connection and one thread. Callers submit items on the event loop; when the lane is free, all waiting
items (up to a number and a size) become one batch, which runs as one database transaction, and the callers get their
results after COMMIT has returned. So a lone item runs at once, and under load the cost of a durable commit is shared by
hundreds of items.

A large batch runs in the thread. A small one takes less time than the change between threads: where the database's
connections allow it, it runs on the event loop, in a greenlet.

The handling of failures in a batch is described in `batches`. Items that wait for rows locked by other sessions are
retried until their timeout, while others proceed.

A caller waits for `reconnect_timeout` and about a second more at most, wherever its items are then: at a server that
does not answer, behind others in the lane, or behind a lock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.errors import BrokerError, Overloaded, RowsLocked, StorageUnavailable
from broker.ports.observer import NO_OBSERVER, Observer
from broker.storage.engine import greenlets
from broker.storage.engine.batches import BatchRunner
from broker.storage.engine.transaction_runner import SHORTEST_TIMEOUT

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

PAUSE_IF_HELD = 0.05
PAUSE_IF_WAITED = 0.5
"""Seconds until items are retried after a lock timeout; meanwhile the lane serves others."""
LATE = 1.0
"""Seconds after its timeout when a caller gets an answer in any case."""
MOST_ON_LOOP = 16
MOST_BYTES_ON_LOOP = 64 * 1024
"""Items, and bytes, of a batch that runs on the event loop."""
ITEM_MEMORY = 1024
"""Approximate bytes of an item in this process, in addition to its payload."""


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """Batch limits and timeouts of a lane.

    Attributes:
        max_items: items in one database transaction.
        max_bytes: sum of the items' sizes in one database transaction.
        max_waiting_bytes: memory that items may take while they wait, by their sizes and about a KiB for each; more
            is refused as Overloaded.
        reconnect_timeout: seconds to try to reach the database before items fail.
        observer: notified of every batch.
    """

    max_items: int = 512
    max_bytes: int = 4 * 1024 * 1024
    max_waiting_bytes: int = 64 * 1024 * 1024
    reconnect_timeout: float = 10.0
    observer: Observer = NO_OBSERVER


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, Outcome]):
    items: Sequence[Item]
    size: int
    memory: int
    answer: asyncio.Future[list[Outcome | BrokerError]]
    until: float
    # If some items were locked out: all outcomes, and the indexes of those that are retried.
    outcomes: list[Outcome | BrokerError] | None = None
    places: Sequence[int] = ()


def _answer(answer: asyncio.Future[list[Outcome | BrokerError]], outcomes: list[Outcome | BrokerError]) -> None:
    held = [outcome for outcome in outcomes if isinstance(outcome, RowsLocked)]
    if held and len(held) == len(outcomes):
        answer.set_exception(held[0])
    else:
        answer.set_result(outcomes)


class Lane(Generic[Item, Outcome]):
    """Batches items of one kind into database transactions."""

    def __init__(
        self,
        name: str,
        database: Database,
        work: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]],
        *,
        redo: Callable[[Session, Sequence[Item], list[Outcome | BrokerError]], list[Outcome | BrokerError]]
        | None = None,
        skip_locked: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]] | None = None,
        settled: Callable[[Item, Outcome | BrokerError], None] | None = None,
        on_unacknowledged: Callable[[Sequence[Outcome | BrokerError]], None] | None = None,
        size_of: Callable[[Item], int] | None = None,
        effort_of: Callable[[Outcome | BrokerError], float] | None = None,
        config: LaneConfig | None = None,
    ) -> None:
        """Takes the work: one outcome per item, in their order, in one database transaction.

        Args:
            name: shown in logs and thread names.
            database: source of the lane's connection.
            work: called in the lane's thread, or in a greenlet on the event loop; never twice at a time.
            redo: used instead of `work` after a COMMIT without an answer; also gets the results of the run in doubt.
            skip_locked: used instead of `work` while other sessions hold rows for long; it avoids waiting for them, and
                returns RowsLocked for items that have to wait.
            settled: called as `work` is, with each item and its outcome once that is committed, before items of
                the same caller that run behind it.
            on_unacknowledged: called on the event loop with outcomes that took effect, or may have, although their
                callers got an unavailable error.
            size_of: bytes of an item; 0 for all when not given.
            effort_of: what an outcome costs, in items, where an item does not tell: after a batch that cost much, the
                next one does not run on the event loop.
            config: bounds.
        """
        self._name = name
        self._on_unacknowledged = on_unacknowledged
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done_at = 0.0
        self._size_of = size_of
        self._effort_of = effort_of
        self._last_effort = 0.0
        self._gives_way = database.gives_way
        self._config = config or LaneConfig()
        self._runner = BatchRunner(
            name,
            database,
            work,
            redo=redo,
            skip_locked=skip_locked,
            settled=settled,
            on_unacknowledged=self._report_unacknowledged,
            reconnect_timeout=self._config.reconnect_timeout,
            observer=self._config.observer,
        )
        self._availability = database.availability
        self._grace = max(LATE, SHORTEST_TIMEOUT - self._config.reconnect_timeout)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"halfmq-{name}")
        self._waiting: deque[_Waiting[Item, Outcome]] = deque()
        self._waiting_bytes = 0
        self._running: Sequence[_Waiting[Item, Outcome]] = ()
        self._held: list[_Waiting[Item, Outcome]] = []
        self._apart: deque[_Waiting[Item, Outcome]] = deque()
        self._ran_apart = False
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def submit(self, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        """Runs items; returns one outcome each, in order, after they are durable.

        Raises:
            Overloaded: too much is waiting.
            StorageUnavailable: the database is unreachable; nothing was acknowledged.
        """
        if not items:
            return []
        size = sum(map(self._size_of, items)) if self._size_of else 0
        memory = size + len(items) * ITEM_MEMORY
        if self._waiting_bytes + memory > self._config.max_waiting_bytes and self._waiting:
            raise Overloaded(f"Too much waits for the database ({self._name}); send less, or later.", retry_after=0.5)
        loop = self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Outcome | BrokerError]] = loop.create_future()
        until = loop.time() + self._config.reconnect_timeout
        self._waiting.append(_Waiting(items, size, memory, answer, until))
        self._waiting_bytes += memory
        if self._timer is None:
            self._timer = loop.call_at(until + self._grace, self._answer_late_ones)
        if not self._busy:
            self._start_batch()
        return await answer

    @property
    def name(self) -> str:
        """As shown in logs."""
        return self._name

    @property
    def waiting(self) -> tuple[int, int, int]:
        """What waits: calls, the memory of their items in bytes, and the most that this may be."""
        return (
            len(self._waiting) + len(self._held) + len(self._apart),
            self._waiting_bytes,
            self._config.max_waiting_bytes,
        )

    async def close(self) -> None:
        """Waits for submitted items, then releases thread and connection."""
        while self._busy or self._held:
            await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._runner.close)
        self._executor.shutdown()

    def avoid_lock_waits(self) -> contextlib.AbstractContextManager[None]:
        """Makes the lane request locks without waiting: another transaction is about to hold some for long."""
        return self._runner.avoid_lock_waits()

    def _report_unacknowledged(self, outcomes: Sequence[Outcome | BrokerError]) -> None:
        if self._on_unacknowledged is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_unacknowledged, outcomes)

    def _start_batch(self) -> None:
        batch: list[_Waiting[Item, Outcome]] = []
        count = size = 0
        # Items that had to wait for a lock run separately, alternating with the rest.
        self._ran_apart = bool(self._apart) and not (self._ran_apart and self._waiting)
        source = self._apart if self._ran_apart else self._waiting
        while source:
            entry = source[0]
            full = count + len(entry.items) > self._config.max_items or size + entry.size > self._config.max_bytes
            if batch and (full or self._ran_apart):
                break
            source.popleft()
            self._waiting_bytes -= entry.memory
            if entry.answer.done():
                continue  # The caller gave up, or got its answer, before its items were started.
            batch.append(entry)
            count += len(entry.items)
            size += entry.size
        self._running = batch
        if not batch and (self._apart or self._waiting):
            self._start_batch()  # All entries of this kind already had their answers.
            return
        if not batch:
            self._busy = False
            if not self._held:
                self._idle.set()
            return
        self._busy = True
        self._idle.clear()
        if self._config.observer is not NO_OBSERVER:
            now = asyncio.get_running_loop().time()
            self._config.observer.batch_started(self._name, now - batch[0].until + self._config.reconnect_timeout)
        pieces = [entry.items for entry in batch]
        running: asyncio.Future[list[Outcome | BrokerError]]
        small = max(count, self._last_effort) <= MOST_ON_LOOP and size <= MOST_BYTES_ON_LOOP
        if small and self._gives_way:
            running = greenlets.start(lambda: self._runner.run(pieces), self._executor)
        else:
            running = asyncio.get_running_loop().run_in_executor(self._executor, self._runner.run, pieces)
        running.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[_Waiting[Item, Outcome]], done: asyncio.Future[list[Outcome | BrokerError]]) -> None:
        error = done.exception()
        if error is None:
            self._done_at = asyncio.get_running_loop().time()
            if self._effort_of is not None:
                self._last_effort = sum(map(self._effort_of, done.result()))
        self._start_batch()
        start = 0
        for entry in batch:
            end = start + len(entry.items)
            if entry.answer.done():
                if error is None and self._on_unacknowledged is not None:
                    self._on_unacknowledged(done.result()[start:end])
            elif error is not None:
                entry.answer.set_exception(error)
            else:
                self._answer_or_hold(entry, done.result()[start:end])
            start = end

    def _answer_or_hold(self, entry: _Waiting[Item, Outcome], outcomes: list[Outcome | BrokerError]) -> None:
        """Completes an entry, unless some of its items are locked out: those are retried."""
        held = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, RowsLocked)]
        if not held and entry.outcomes is None:
            entry.answer.set_result(outcomes)
            return
        apart = any(outcome.waited for outcome in outcomes if isinstance(outcome, RowsLocked))
        pause = PAUSE_IF_WAITED if apart else PAUSE_IF_HELD
        places = entry.places or range(len(outcomes))
        if entry.outcomes is None:
            entry.outcomes = outcomes
        else:
            for place, outcome in zip(places, outcomes, strict=True):
                entry.outcomes[place] = outcome
        loop = asyncio.get_running_loop()
        if not held or loop.time() + pause >= entry.until:
            _answer(entry.answer, entry.outcomes)
            return
        entry.places = [places[index] for index in held]
        entry.items = [entry.items[index] for index in held]
        self._held.append(entry)
        self._idle.clear()
        loop.call_later(pause, self._try_again, entry, apart)

    def _try_again(self, entry: _Waiting[Item, Outcome], apart: bool) -> None:
        self._held.remove(entry)
        (self._apart if apart else self._waiting).append(entry)
        self._waiting_bytes += entry.memory
        if not self._busy:
            self._start_batch()

    def _answer_late_ones(self) -> None:
        """Fails the entries that timed out, wherever their items are; their work may still take effect."""
        loop = asyncio.get_running_loop()
        now, following = loop.time(), None
        begun = len(self._running) + len(self._held) + len(self._apart)
        for number, entry in enumerate(itertools.chain(self._running, self._held, self._apart, self._waiting)):
            if entry.answer.done():
                continue
            if (late := entry.until + self._grace) > now:
                following = late if following is None else min(following, late)
                continue
            error: BrokerError = StorageUnavailable(
                f"The database does not answer in time ({self._name}); nothing was acknowledged, try again."
            )
            # Progress since its arrival distinguishes a busy database from one that does not answer.
            came = entry.until - self._config.reconnect_timeout
            if number >= begun and self._done_at > came and not self._availability.away:
                error = Overloaded(
                    f"Too much waited for the database ({self._name}); send less, or later.", retry_after=0.5
                )
            entry.answer.set_exception(error)
        self._timer = None if following is None else loop.call_at(following, self._answer_late_ones)
