"""Group commit: what waits is merged into one database transaction while the previous one runs.

A lane has one thread and one connection. Callers hand items in on the event loop; when the lane is free, everything
that waits (up to a number and a size) becomes one batch, the thread runs it as one database transaction, and the
callers are answered after COMMIT returned. So a lone item goes at once, and under load the cost of a durable commit is
shared by hundreds of items.

What can go wrong, and what is done:

* Deadlock: the batch is rolled back and run again.
* A row stays locked by somebody else: for a while the lane is wary, which means that its work asks for locks without
  waiting, takes another queue, and tells which items must wait (`RowsHeld`). Where that does not help, what each caller
  handed in runs apart. What is held is tried again until its patience ends, while others go on.
* Lost connection, also at COMMIT where the outcome is unknown: the batch is run again on a new connection. Most kinds
  of work are idempotent by their ids, so a batch that had taken effect finds its own traces. Work that would not answer
  the same twice comes with a `Redo`, which is shown what the run in doubt had answered. That COMMIT may take effect
  only after the next run has begun: so a `Redo` looks for its traces under a lock, which waits for whoever still holds
  them.
* A key that exists: somebody else stored the same at the same time, on another broker or by a COMMIT that got no answer
  and took effect late. The batch is rolled back and run again, a few times: now it sees what was stored.
* Anything about the work itself: the batch is rolled back and its items are run one by one, so only the item at fault
  fails.
* The database stays away, is read-only or full: the items fail with StorageUnavailable; nothing was acknowledged.

A caller waits for `patience` and about a second more, wherever its items are then: with a server that answers nothing,
behind others in the lane, or behind a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.errors import BrokerError, Overloaded, RowsHeld, StorageRejected, StorageUnavailable
from broker.ports.observer import NO_OBSERVER, Observer
from broker.storage.engine.dialects import waited_in_vain
from broker.storage.engine.worker import HELD, LEAST_PATIENCE, StartOver, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

LOCK_WAIT = 1
"""Seconds that a lane waits for a row that somebody else holds, before it turns to other work."""
WARY_FOR = 10.0
"""Seconds that a lane asks before it waits for locks, once it waited in vain."""
APART_FOR = 3.0
"""Seconds that a batch runs apart; what is left of it then comes again, so that others have their turn."""
PAUSE_IFHELD = 0.05
PAUSE_IF_WAITED = 0.5
"""Seconds until what had to wait for a lock in vain is tried again; the rest of the lane has them for itself."""
LATE = 1.0
"""Seconds after the end of a caller's patience when it gets its answer in any case."""
ITEM_MEMORY = 1024
"""Bytes that an item takes in this process, about, besides what it carries."""


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """How much a lane merges and how long it tries.

    Attributes:
        max_items: items in one database transaction.
        max_bytes: sum of the items' sizes in one database transaction.
        max_waiting_bytes: memory that items may take while they wait, by their sizes and about a KiB for each; more
            is refused as Overloaded.
        patience: seconds to try to reach the database before items fail.
        observer: sees every batch.
    """

    max_items: int = 512
    max_bytes: int = 4 * 1024 * 1024
    max_waiting_bytes: int = 64 * 1024 * 1024
    patience: float = 10.0
    observer: Observer = NO_OBSERVER


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, Outcome]):
    items: Sequence[Item]
    size: int
    memory: int
    answer: asyncio.Future[list[Outcome | BrokerError]]
    until: float
    # Once some items were held: all outcomes, and the places of those that are tried again.
    outcomes: list[Outcome | BrokerError] | None = None
    places: Sequence[int] = ()


def _answer(answer: asyncio.Future[list[Outcome | BrokerError]], outcomes: list[Outcome | BrokerError]) -> None:
    held = [outcome for outcome in outcomes if isinstance(outcome, RowsHeld)]
    if held and len(held) == len(outcomes):
        answer.set_exception(held[0])
    else:
        answer.set_result(outcomes)


class Lane(Generic[Item, Outcome]):
    """Merges items of one kind into database transactions."""

    def __init__(
        self,
        name: str,
        database: Database,
        work: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]],
        *,
        redo: Callable[[Session, Sequence[Item], list[Outcome | BrokerError]], list[Outcome | BrokerError]]
        | None = None,
        wary: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]] | None = None,
        unheard: Callable[[Sequence[Outcome | BrokerError]], None] | None = None,
        size_of: Callable[[Item], int] | None = None,
        config: LaneConfig | None = None,
    ) -> None:
        """Takes the work: one outcome per item, in their order, in one database transaction.

        Args:
            name: shown in logs and thread names.
            database: where the lane takes its connection.
            work: called in the lane's thread.
            redo: takes the place of `work` once a COMMIT got no answer; also given what the run in doubt had answered.
            wary: takes the place of `work` while rows are held by others for long; it waits for none of them as far as
                it can, and answers RowsHeld for items that have to wait.
            unheard: told, on the event loop, what took effect, or may have, though its callers were told that the
                database does not answer.
            size_of: bytes of an item; 0 for all when not given.
            config: bounds.
        """
        self._name = name
        self._work = work
        self._redo = redo
        self._wary = wary
        self._unheard = unheard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wary_until = 0.0
        self._done_at = 0.0
        self._warnings = 0
        self._size_of = size_of
        self._config = config or LaneConfig()
        self._worker = Worker(database, patience=self._config.patience, lock_wait=LOCK_WAIT)
        self._availability = database.availability
        self._grace = max(LATE, LEAST_PATIENCE - self._config.patience)
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
        """Runs items; one outcome each, in their order, after they are durable.

        Raises:
            Overloaded: too much is waiting.
            StorageUnavailable: the database is away; nothing was acknowledged.
        """
        if not items:
            return []
        size = sum(map(self._size_of, items)) if self._size_of else 0
        memory = size + len(items) * ITEM_MEMORY
        if self._waiting_bytes + memory > self._config.max_waiting_bytes and self._waiting:
            raise Overloaded(f"Too much waits for the database ({self._name}); send less, or later.", retry_after=0.5)
        loop = self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Outcome | BrokerError]] = loop.create_future()
        until = loop.time() + self._config.patience
        self._waiting.append(_Waiting(items, size, memory, answer, until))
        self._waiting_bytes += memory
        if self._timer is None:
            self._timer = loop.call_at(until + self._grace, self._answer_late_ones)
        if not self._busy:
            self._start_batch()
        return await answer

    async def close(self) -> None:
        """Waits for what was handed in, then gives thread and connection back."""
        while self._busy or self._held:
            await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._worker.close)
        self._executor.shutdown()

    def _start_batch(self) -> None:
        batch: list[_Waiting[Item, Outcome]] = []
        count = size = 0
        # What had to wait for a lock runs by itself, and by turns with the rest.
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
                continue  # The caller gave up, or was answered, before its items were touched.
            batch.append(entry)
            count += len(entry.items)
            size += entry.size
        self._running = batch
        if not batch and (self._apart or self._waiting):
            self._start_batch()  # All of the one kind had been answered.
            return
        if not batch:
            self._busy = False
            if not self._held:
                self._idle.set()
            return
        self._busy = True
        self._idle.clear()
        pieces = [entry.items for entry in batch]
        running = asyncio.get_running_loop().run_in_executor(self._executor, self._run_observed, pieces)
        running.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[_Waiting[Item, Outcome]], done: asyncio.Future[list[Outcome | BrokerError]]) -> None:
        self._start_batch()
        error = done.exception()
        if error is None:
            self._done_at = asyncio.get_running_loop().time()
        start = 0
        for entry in batch:
            end = start + len(entry.items)
            if entry.answer.done():
                if error is None and self._unheard is not None:
                    self._unheard(done.result()[start:end])
            elif error is not None:
                entry.answer.set_exception(error)
            else:
                self._settle(entry, done.result()[start:end])
            start = end

    def _settle(self, entry: _Waiting[Item, Outcome], outcomes: list[Outcome | BrokerError]) -> None:
        """Answers an entry, unless some of its items are held: those are tried again."""
        held = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, RowsHeld)]
        if not held and entry.outcomes is None:
            entry.answer.set_result(outcomes)
            return
        apart = any(outcome.waited for outcome in outcomes if isinstance(outcome, RowsHeld))
        pause = PAUSE_IF_WAITED if apart else PAUSE_IFHELD
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
        """Answers those whose patience has ended, wherever their items are; their work may still take effect."""
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
            # What was done since it came tells a busy database from one that does not answer.
            came = entry.until - self._config.patience
            if number >= begun and self._done_at > came and not self._availability.away:
                error = Overloaded(
                    f"Too much waited for the database ({self._name}); send less, or later.", retry_after=0.5
                )
            entry.answer.set_exception(error)
        self._timer = None if following is None else loop.call_at(following, self._answer_late_ones)

    def _run_observed(self, pieces: Sequence[Sequence[Item]]) -> list[Outcome | BrokerError]:
        observer = self._config.observer
        if observer is NO_OBSERVER:
            return self._run(pieces)
        began, items = time.monotonic(), sum(map(len, pieces))
        try:
            outcomes = self._run(pieces)
        except Exception as error:
            observer.batch_ended(self._name, items, time.monotonic() - began, error)
            raise
        observer.batch_ended(self._name, items, time.monotonic() - began, None)
        return outcomes

    def _run(self, pieces: Sequence[Sequence[Item]]) -> list[Outcome | BrokerError]:
        items = pieces[0] if len(pieces) == 1 else [item for piece in pieces for item in piece]
        try:
            return self._transact(items)
        except RowsHeld:
            return self._run_apart(pieces)
        except StorageUnavailable:
            raise
        except BrokerError as error:
            if len(items) == 1:
                return [error]
        except Exception:
            if len(items) == 1:
                return [self._rejected(items[0])]
            logger.exception("a batch of %d failed in lane %s; running its items one by one", len(items), self._name)
        outcomes: list[Outcome | BrokerError] = []
        for piece in pieces:
            before = outcomes[-1] if outcomes else None
            if isinstance(before, StorageUnavailable) and self._availability.away:
                outcomes += [before] * len(piece)  # One has waited for the database, for all.
            else:
                outcomes += self._run_in_order(piece)
        return outcomes

    def _transact(self, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        redo = self._redo
        may_turn_wary = self._wary is not None and not self._is_wary()
        in_doubt: list[list[Outcome | BrokerError]] = []
        try:
            return self._worker.transact(
                lambda session: self._work_on(session, items),
                redo=(lambda session, before: redo(session, items, before)) if redo else None,
                lock_waits=2 if may_turn_wary else 1,
                in_doubt=in_doubt,
            )
        except Exception as error:
            if redo is None or not in_doubt:
                raise
            # It may have taken effect, or may do so yet. Run once more, apart, it would answer as if it had not.
            if self._unheard is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._unheard, in_doubt[0])
            raise StorageUnavailable(
                "The database did not say whether this took effect; nothing was acknowledged, try again."
            ) from error

    @contextlib.contextmanager
    def beware(self) -> Iterator[None]:
        """Has it ask for locks before it waits for them: somebody is about to hold some for long."""
        self._warnings += 1
        try:
            yield
        finally:
            self._warnings -= 1

    def _is_wary(self) -> bool:
        return self._warnings > 0 or time.monotonic() < self._wary_until

    def _work_on(self, session: Session, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        if self._wary is not None and self._is_wary():
            return self._wary(session, items)
        return self._noticing_waits(lambda: self._work(session, items))

    def _noticing_waits(self, run: Callable[[], list[Outcome | BrokerError]]) -> list[Outcome | BrokerError]:
        try:
            return run()
        except StartOver as over:
            if (again := over.again) is None:
                raise
            raise StartOver(lambda session: self._noticing_waits(lambda: again(session))) from None
        except Exception as error:
            if waited_in_vain(error):
                self._wary_until = time.monotonic() + WARY_FOR
            raise

    def _run_apart(self, pieces: Sequence[Sequence[Item]]) -> list[Outcome | BrokerError]:
        """Runs what each caller handed in by itself: nobody's work fails because of what others wait for."""
        outcomes: list[Outcome | BrokerError] = []
        until = time.monotonic() + APART_FOR
        for piece in pieces:
            if len(pieces) == 1:
                outcomes += self._run_in_order(piece, waited=True)
            elif time.monotonic() > until:
                outcomes += [RowsHeld(HELD) for _ in piece]
            else:
                try:
                    outcomes += self._transact(piece)
                except RowsHeld:
                    outcomes += self._run_in_order(piece, waited=True)
                except StorageUnavailable as error:
                    outcomes += [error.as_outcome()] * len(piece)
                except Exception:  # Each item has its own outcome.
                    outcomes += self._run_in_order(piece)
        return outcomes

    def _run_in_order(self, piece: Sequence[Item], *, waited: bool = False) -> list[Outcome | BrokerError]:
        """Runs a caller's items one by one, up to the first that is held, or finds no database: nothing may pass it.

        With `waited`, all of them waited together, in vain: a lone one has had its turn.
        """
        outcomes: list[Outcome | BrokerError] = []
        for item in () if waited and len(piece) == 1 else piece:
            outcome = self._run_alone(item)
            if isinstance(outcome, RowsHeld):
                break
            outcomes.append(outcome)
            if isinstance(outcome, StorageUnavailable):
                return outcomes + [outcome] * (len(piece) - len(outcomes))
        return outcomes + [RowsHeld(HELD, waited=True) for _ in piece[len(outcomes) :]]

    def _run_alone(self, item: Item) -> Outcome | BrokerError:
        try:
            return self._transact([item])[0]
        except BrokerError as error:
            return error
        except Exception:  # Becomes this item's outcome.
            return self._rejected(item)

    def _rejected(self, item: Item) -> BrokerError:
        logger.exception("the database refused an item in lane %s: %.200r", self._name, item)
        return StorageRejected("The database refused this item; the broker's log has the details.")
