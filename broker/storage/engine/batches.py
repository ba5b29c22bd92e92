"""Runs a batch in one database transaction, or in several if one item would make the rest wait.

Failures and their handling:

* Deadlock: the batch is rolled back and run again, by `transaction_runner`.
* A row stays locked by another session: for a while the lane skips locked rows: its work requests locks without
  waiting, uses another queue, and reports which items must wait (`RowsLocked`). If that does not help, each caller's
  items run separately. Items that must wait are retried by the lane, until their caller's timeout.
* Lost connection, also at COMMIT where the outcome is unknown: the batch is run again on a new connection. Most kinds
  of work are idempotent by their ids, so a retried batch detects that it had taken effect. Work that would not answer
  the same twice has a `Redo`, which gets the results of the run in doubt. That COMMIT may take effect only after the
  next run has begun: so a `Redo` checks under a lock, which waits for the session that still holds the rows.
* A duplicate key: the same was stored concurrently, by another broker or by a COMMIT that got no answer and took effect
  late. The batch is rolled back and run again, a few times: now it sees the stored rows.
* An error of the work itself: the batch is rolled back and its items are run one by one, so only the faulty item fails.
* The database stays unreachable, is read-only or full: the items fail with StorageUnavailable; nothing was
  acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.errors import BrokerError, RowsLocked, StorageRejected, StorageUnavailable
from broker.ports.observer import NO_OBSERVER
from broker.storage.engine.item_ids import ids_of, ids_of_all
from broker.storage.engine.transaction_runner import HELD, TransactionRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.ports.observer import Observer
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

logger = logging.getLogger("halfmq.storage")

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

LOCK_WAIT = 1
"""Seconds that a lane waits for a row that another session holds, before it continues with other work."""
SKIP_LOCKED_FOR = 10.0
"""Seconds that a lane requests locks without waiting, after a wait for a lock has timed out."""
APART_FOR = 3.0
"""Seconds for running a batch's parts separately; the rest is deferred, so that others get their turn."""


class BatchRunner(Generic[Item, Outcome]):
    """Runs the batches of one lane, on its own connection."""

    def __init__(
        self,
        name: str,
        database: Database,
        work: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]],
        *,
        redo: Callable[[Session, Sequence[Item], list[Outcome | BrokerError]], list[Outcome | BrokerError]] | None,
        skip_locked: Callable[[Session, Sequence[Item]], list[Outcome | BrokerError]] | None,
        settled: Callable[[Item, Outcome | BrokerError], None] | None,
        on_unacknowledged: Callable[[Sequence[Outcome | BrokerError]], None],
        reconnect_timeout: float,
        observer: Observer,
    ) -> None:
        """Takes the work, as a Lane does.

        Args:
            name: of the lane, for logs and the observer.
            database: source of its connection.
            work: one outcome per item, in their order, in one database transaction.
            redo: used instead of `work` after a COMMIT without an answer.
            skip_locked: used instead of `work` while other sessions hold rows for long.
            settled: called with each item and its outcome once that is committed.
            on_unacknowledged: called, where the batch runs, with outcomes that may have taken effect although their
                callers got an unavailable error.
            reconnect_timeout: seconds to try to reach the database.
            observer: notified of every batch.
        """
        self._name = name
        self._work = work
        self._redo = redo
        self._skip_locked = skip_locked
        self._settled = settled
        self._on_unacknowledged = on_unacknowledged
        self._observer = observer
        self._availability = database.availability
        self._runner = TransactionRunner(database, reconnect_timeout=reconnect_timeout, lock_wait=LOCK_WAIT)
        self._skips_locked_until = 0.0
        self._warnings = 0

    def close(self) -> None:
        """Releases the connection."""
        self._runner.close()

    @contextlib.contextmanager
    def avoid_lock_waits(self) -> Iterator[None]:
        """Makes the lane request locks without waiting: another transaction is about to hold some for long."""
        self._warnings += 1
        try:
            yield
        finally:
            self._warnings -= 1

    @property
    def skips_locked(self) -> bool:
        """Whether it requests locks without waiting."""
        return self._warnings > 0 or time.monotonic() < self._skips_locked_until

    def run(self, pieces: Sequence[Sequence[Item]]) -> list[Outcome | BrokerError]:
        """Runs a batch; returns one outcome each, in order.

        Args:
            pieces: each caller's items.

        Raises:
            StorageUnavailable: the database is unreachable; nothing was acknowledged.
        """
        observer = self._observer
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
        except RowsLocked:
            return self._run_apart(pieces)
        except StorageUnavailable:
            raise
        except BrokerError as error:
            if len(items) == 1:
                return [error]
        except Exception:
            if len(items) == 1:
                return [self._rejected(items[0])]
            logger.exception(
                "a batch of %d failed in lane %s; running its items one by one",
                len(items),
                self._name,
                extra=ids_of_all(items),
            )
        outcomes: list[Outcome | BrokerError] = []
        for piece in pieces:
            before = outcomes[-1] if outcomes else None
            if isinstance(before, StorageUnavailable) and self._availability.away:
                outcomes += [before] * len(piece)  # One caller's wait for the database counts for all.
            else:
                outcomes += self._run_in_order(piece)
        return outcomes

    def _transact(self, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        redo = self._redo
        may_skip_locked = self._skip_locked is not None and not self.skips_locked
        in_doubt: list[list[Outcome | BrokerError]] = []
        try:
            outcomes = self._runner.transact(
                lambda session: self._work_on(session, items),
                redo=(lambda session, before: redo(session, items, before)) if redo else None,
                lock_waits=2 if may_skip_locked else 1,
                in_doubt=in_doubt,
                on_lock_wait=self._skip_locked_for_a_while,
            )
        except Exception as error:
            if redo is None or not in_doubt:
                raise
            # It may have taken effect, or may still do so. Running it again separately would return as if it had not.
            self._on_unacknowledged(in_doubt[0])
            raise StorageUnavailable(
                "The database did not say whether this took effect; nothing was acknowledged, try again."
            ) from error
        if self._settled is not None:
            for item, outcome in zip(items, outcomes, strict=True):
                self._settled(item, outcome)
        return outcomes

    def _work_on(self, session: Session, items: Sequence[Item]) -> list[Outcome | BrokerError]:
        if self._skip_locked is not None and self.skips_locked:
            return self._skip_locked(session, items)
        return self._work(session, items)

    def _skip_locked_for_a_while(self) -> None:
        if not self.skips_locked:
            self._skips_locked_until = time.monotonic() + SKIP_LOCKED_FOR

    def _run_apart(self, pieces: Sequence[Sequence[Item]]) -> list[Outcome | BrokerError]:
        """Runs each caller's items separately, so that no caller fails because of others' locks."""
        outcomes: list[Outcome | BrokerError] = []
        until = time.monotonic() + APART_FOR
        for piece in pieces:
            if len(pieces) == 1:
                outcomes += self._run_in_order(piece, waited=True)
            elif time.monotonic() > until:
                outcomes += [RowsLocked(HELD) for _ in piece]
            else:
                try:
                    outcomes += self._transact(piece)
                except RowsLocked:
                    outcomes += self._run_in_order(piece, waited=True)
                except StorageUnavailable as error:
                    outcomes += [error.as_outcome()] * len(piece)
                except Exception:  # Each item has its own outcome.
                    outcomes += self._run_in_order(piece)
        return outcomes

    def _run_in_order(self, piece: Sequence[Item], *, waited: bool = False) -> list[Outcome | BrokerError]:
        """Runs a caller's items one by one, up to the first that is locked or unavailable: none may overtake it.

        With `waited`, they have already waited together: a single item does not wait again.
        """
        outcomes: list[Outcome | BrokerError] = []
        for item in () if waited and len(piece) == 1 else piece:
            outcome = self._run_alone(item)
            if isinstance(outcome, RowsLocked):
                break
            outcomes.append(outcome)
            if isinstance(outcome, StorageUnavailable):
                return outcomes + [outcome] * (len(piece) - len(outcomes))
        return outcomes + [RowsLocked(HELD, waited=True) for _ in piece[len(outcomes) :]]

    def _run_alone(self, item: Item) -> Outcome | BrokerError:
        try:
            return self._transact([item])[0]
        except BrokerError as error:
            return error
        except Exception:  # Becomes this item's outcome.
            return self._rejected(item)

    def _rejected(self, item: Item) -> BrokerError:
        logger.exception("the database refused an item in lane %s: %.200r", self._name, item, extra=ids_of(item))
        return StorageRejected("The database refused this item; the broker's log has the details.")
