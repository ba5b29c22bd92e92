"""Group commit: what waits is merged into one database transaction while the previous one runs.

A lane has one thread and one connection. Callers hand items in on the event loop; when the lane is free, everything
that waits (up to a number and a size) becomes one batch, the thread runs it as one database transaction, and the
callers are answered after COMMIT returned. So a lone item goes at once, and under load the cost of a durable commit is
shared by hundreds of items.

What can go wrong, and what is done:

* Deadlock or lock wait: the batch is rolled back and run again.
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
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from broker.errors import BrokerError, Overloaded, StorageRejected, StorageUnavailable
from broker.storage.engine import Database, Trouble, is_database_error, trouble_of
from broker.storage.session import Session

logger = logging.getLogger("halfmq.storage")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

Redo: TypeAlias = Callable[[Session, Outcome], Outcome]
"""Runs work again after a COMMIT that got no answer, given what the run in doubt would have answered."""

RETRIES_AFTER_ROLLBACK = 20
RETRIES_AFTER_DUPLICATE = 5
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
    """

    max_items: int = 512
    max_bytes: int = 4 * 1024 * 1024
    max_waiting_bytes: int = 64 * 1024 * 1024
    patience: float = 10.0


@dataclass(slots=True)
class _Waiting(Generic[Item, Outcome]):
    items: Sequence[Item]
    size: int
    memory: int
    answer: asyncio.Future[list[Outcome | BrokerError]]


class Worker:
    """Runs work as database transactions on one connection that it keeps, in whatever thread calls."""

    def __init__(self, database: Database, *, patience: float, reading: bool = False) -> None:
        """Connects when first used; `reading`: for work that only reads, statement by statement."""
        self._database = database
        self._patience = patience
        self._reading = reading
        self._session: Session | None = None

    def transact(
        self, work: Callable[[Session], Outcome], *, write: bool = True, redo: Redo[Outcome] | None = None
    ) -> Outcome:
        """Runs `work` in a transaction of its own and commits it; again where that is safe and may help.

        Args:
            work: idempotent, or with a `redo`.
            write: whether it writes.
            redo: takes the place of `work` once a COMMIT got no answer.

        Raises:
            StorageUnavailable: the database could not be reached or written within the patience.
            Exception: whatever `work` raised, after a rollback.
        """
        deadline = time.monotonic() + self._patience
        attempt = duplicates = 0
        in_doubt: list[Outcome] = []
        while True:
            attempt += 1
            answers: list[Outcome] = []
            try:
                session = self._session = self._session or self._database.session(reading=self._reading)
                session.begin(write=write)
                outcome = redo(session, in_doubt[0]) if redo and in_doubt else work(session)
                answers.append(outcome)
                session.commit()
            except Exception as error:
                trouble = trouble_of(error)
                if answers and trouble is Trouble.LOST:
                    in_doubt = answers
                if trouble is Trouble.DUPLICATE and duplicates < RETRIES_AFTER_DUPLICATE:
                    duplicates += 1
                    self._roll_back()
                    continue
                if not is_database_error(error) or trouble in {Trouble.DUPLICATE, Trouble.OTHER}:
                    self._roll_back()
                    raise
                if not self._may_retry(trouble, error, attempt, deadline):
                    raise StorageUnavailable(
                        f"The database does not take this now ({trouble.name.lower().replace('_', ' ')}); "
                        "nothing was acknowledged, try again."
                    ) from error
            else:
                return outcome

    def close(self) -> None:
        """Gives the connection back."""
        if self._session is not None:
            self._roll_back()
        if self._session is not None:
            self._database.release(self._session)
            self._session = None

    def _may_retry(self, trouble: Trouble, error: Exception, attempt: int, deadline: float) -> bool:
        if trouble is Trouble.RETRY:
            self._roll_back()
            again = attempt <= RETRIES_AFTER_ROLLBACK and time.monotonic() < deadline
            pause = min(0.002 * attempt, 0.05)
        else:
            self._drop()
            again = time.monotonic() < deadline and trouble is not Trouble.FULL
            pause = min(0.05 * attempt, 0.5)
        if again:
            logger.warning("database trouble (%s), attempt %d: %s", trouble.name, attempt, error)
            time.sleep(pause)
        return again

    def _roll_back(self) -> None:
        if self._session is None:
            return
        try:
            self._session.rollback()
        except Exception:  # A connection that cannot roll back is of no use.
            self._drop()

    def _drop(self) -> None:
        if self._session is not None:
            self._database.discard(self._session)
            self._session = None


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
        size_of: Callable[[Item], int] | None = None,
        config: LaneConfig | None = None,
    ) -> None:
        """Takes the work: one outcome per item, in their order, in one database transaction.

        Args:
            name: shown in logs and thread names.
            database: where the lane takes its connection.
            work: called in the lane's thread.
            redo: takes the place of `work` once a COMMIT got no answer; also given what the run in doubt had answered.
            size_of: bytes of an item; 0 for all when not given.
            config: bounds.
        """
        self._name = name
        self._work = work
        self._redo = redo
        self._size_of = size_of
        self._config = config or LaneConfig()
        self._worker = Worker(database, patience=self._config.patience)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"halfmq-{name}")
        self._waiting: deque[_Waiting[Item, Outcome]] = deque()
        self._waiting_bytes = 0
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
        answer: asyncio.Future[list[Outcome | BrokerError]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(items, size, memory, answer))
        self._waiting_bytes += memory
        if not self._busy:
            self._start_batch()
        return await answer

    async def close(self) -> None:
        """Waits for what was handed in, then gives thread and connection back."""
        await self._idle.wait()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._worker.close)
        self._executor.shutdown()

    def _start_batch(self) -> None:
        batch: list[_Waiting[Item, Outcome]] = []
        count = size = 0
        while self._waiting:
            entry = self._waiting[0]
            full = count + len(entry.items) > self._config.max_items or size + entry.size > self._config.max_bytes
            if batch and full:
                break
            self._waiting.popleft()
            self._waiting_bytes -= entry.memory
            if entry.answer.cancelled():
                continue  # The caller gave up before its items were touched.
            batch.append(entry)
            count += len(entry.items)
            size += entry.size
        if not batch:
            self._busy = False
            self._idle.set()
            return
        self._busy = True
        self._idle.clear()
        items = batch[0].items if len(batch) == 1 else [item for entry in batch for item in entry.items]
        running = asyncio.get_running_loop().run_in_executor(self._executor, self._run, items)
        running.add_done_callback(lambda done: self._finish(batch, done))

    def _finish(self, batch: list[_Waiting[Item, Outcome]], done: asyncio.Future[list[Outcome | BrokerError]]) -> None:
        self._start_batch()
        error = done.exception()
        start = 0
        for entry in batch:
            end = start + len(entry.items)
            if entry.answer.cancelled():
                pass
            elif error is not None:
                entry.answer.set_exception(error)
            else:
                entry.answer.set_result(done.result()[start:end])
            start = end

    def _run(self, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        try:
            return self._transact(items)
        except StorageUnavailable:
            raise
        except BrokerError as error:
            if len(items) == 1:
                return [error]
        except Exception:
            if len(items) == 1:
                return [self._rejected(items[0])]
            logger.exception("a batch of %d failed in lane %s; running its items one by one", len(items), self._name)
        return [self._run_alone(item) for item in items]

    def _transact(self, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        redo = self._redo
        return self._worker.transact(
            lambda session: self._work(session, items),
            redo=(lambda session, before: redo(session, items, before)) if redo else None,
        )

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
