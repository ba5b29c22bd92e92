"""One connection that runs work as database transactions, with retries where safe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from broker.errors import RowsLocked, StorageUnavailable
from broker.ports.observer import NO_OBSERVER
from broker.storage.engine import greenlets
from broker.storage.engine.dialects import failure_of, is_database_error, is_lock_timeout
from broker.storage.engine.failures import Failure
from broker.storage.engine.session import Session, StartOver

if TYPE_CHECKING:
    from broker.storage.engine.connection import Database

logger = logging.getLogger("halfmq.storage")

Outcome = TypeVar("Outcome")

Redo: TypeAlias = Callable[[Session, Outcome], Outcome]
"""Runs work again after a COMMIT without an answer, given the results of the run in doubt."""

RETRIES_AFTER_ROLLBACK = 20
RETRIES_AFTER_DUPLICATE = 5
SHORTEST_TIMEOUT = 5.0
"""Minimum seconds for one attempt, however short the timeout is."""
MOST_STARTS = 20

HELD = "Another session holds rows that this needs; nothing was acknowledged, try again."


def _redone(redo: Redo[Outcome], before: Outcome, session: Session) -> Outcome:
    return redo(session, before)


def _run(session: Session, work: Callable[[Session], Outcome], write: bool, answers: list[Outcome]) -> Outcome:
    """Runs work as a transaction, or as another one if it has to start over; adds the answer before the COMMIT."""
    session.begin(write=write)
    for _ in range(MOST_STARTS):
        try:
            answers.append(work(session))
            session.commit()
        except StartOver as over:
            answers.clear()
            session.rollback()
            session.begin(write=write)
            work = over.again or work
        else:
            return answers[0]
    raise RuntimeError("what the work builds upon changes faster than it can be looked at")


class TransactionRunner:
    """Runs work as database transactions on one persistent connection, in the calling thread or greenlet."""

    def __init__(
        self,
        database: Database,
        *,
        reconnect_timeout: float,
        reading: bool = False,
        awaited: bool = True,
        lock_wait: int | None = None,
    ) -> None:
        """Connects when first used.

        Args:
            database: the database.
            reconnect_timeout: seconds to try to reach the database.
            reading: for read-only work in autocommit mode.
            awaited: whether a caller waits for it, so that a statement may not take longer than the timeout.
            lock_wait: seconds to wait for a row that another session holds.
        """
        self._database = database
        self._reconnect_timeout = reconnect_timeout
        self._reading = reading
        self._answer_timeout = max(reconnect_timeout, SHORTEST_TIMEOUT) if awaited else None
        self._lock_wait = lock_wait
        self._session: Session | None = None
        self._used_at = 0.0

    def transact(
        self,
        work: Callable[[Session], Outcome],
        *,
        write: bool = True,
        redo: Redo[Outcome] | None = None,
        lock_waits: int = RETRIES_AFTER_ROLLBACK,
        in_doubt: list[Outcome] | None = None,
        on_lock_wait: Callable[[], None] | None = None,
    ) -> Outcome:
        """Runs `work` in a separate transaction and commits it, with retries where safe.

        Args:
            work: idempotent, or with a `redo`.
            write: whether it writes.
            redo: used instead of `work` after a COMMIT without an answer.
            lock_waits: maximum number of timed-out waits for a row that another session holds.
            on_lock_wait: called when one timed out.
            in_doubt: called with the results of a COMMIT without an answer, for use when this fails.

        Raises:
            RowsLocked: another session holds rows that are needed.
            StorageUnavailable: the database could not be reached or written within the timeout.
            Exception: an exception of `work`, after a rollback.
        """
        deadline = time.monotonic() + self._reconnect_timeout
        attempt = duplicates = waited = 0
        in_doubt = [] if in_doubt is None else in_doubt
        while True:
            attempt += 1
            answers: list[Outcome] = []
            began = time.monotonic()
            try:
                session = self._connected(began, deadline)
                run = partial(_redone, redo, in_doubt[0]) if redo and in_doubt else work
                outcome = _run(session, run, write, answers)
            except Exception as error:
                failure = failure_of(error)
                self._tell_failed(failure, error)
                if answers and failure is Failure.LOST:
                    in_doubt[:] = answers
                if failure is Failure.DUPLICATE and duplicates < RETRIES_AFTER_DUPLICATE:
                    duplicates += 1
                    self._roll_back()
                    continue
                if not is_database_error(error) or failure in {Failure.DUPLICATE, Failure.OTHER}:
                    self._roll_back()
                    raise
                if is_lock_timeout(error):
                    waited += 1
                    if on_lock_wait is not None:
                        on_lock_wait()
                # A COMMIT in doubt may hold the rows itself; only here are its results known.
                again = self._may_retry(failure, error, attempt, deadline) and (bool(in_doubt) or waited < lock_waits)
                if not again and failure is Failure.RETRY and not self._database.dialect.one_writer:
                    raise RowsLocked(HELD) from error
                if not again:
                    raise StorageUnavailable(
                        f"The database does not take this now ({failure.name.lower().replace('_', ' ')}); "
                        "nothing was acknowledged, try again."
                    ) from error
            else:
                self._used_at = time.monotonic()
                if self._database.availability.away:
                    self._database.availability.answered(began, written=not self._reading)
                self._tell_answered(self._used_at - deadline + self._reconnect_timeout)
                return outcome

    def close(self) -> None:
        """Releases the connection."""
        if self._session is not None:
            self._roll_back()
        if self._session is not None:
            self._database.release(self._session)
            self._session = None

    def _tell_answered(self, seconds: float) -> None:
        if self._database.observer is not NO_OBSERVER:
            self._database.observer.database_answered("read" if self._reading else "write", seconds)

    def _tell_failed(self, failure: Failure, error: Exception) -> None:
        if self._database.observer is not NO_OBSERVER and is_database_error(error):
            self._database.observer.database_failed(failure.name.lower())

    def _connected(self, now: float, deadline: float) -> Session:
        session = self._session
        if session is not None and (
            now - self._used_at > self._database.idle_limit(reading=self._reading)
            or self._database.is_outdated(session)
        ):
            greenlets.in_thread(partial(self._database.renew, session))
            session = self._session = None
        if session is None:
            connect = partial(
                self._database.session,
                reading=self._reading,
                within=deadline - now,
                answer_timeout=self._answer_timeout,
                lock_wait=self._lock_wait,
            )
            session = self._session = greenlets.in_thread(connect)
        return session

    def _may_retry(self, failure: Failure, error: Exception, attempt: int, deadline: float) -> bool:
        if failure is Failure.RETRY:
            self._roll_back()
            again = attempt <= RETRIES_AFTER_ROLLBACK and time.monotonic() < deadline
            pause = min(0.002 * attempt, 0.05)
            if again:
                logger.info("rows are held by others, attempt %d: %s", attempt, error)
        else:
            self._database.availability.failed(
                failure.name.lower().replace("_", " "), error, of_writing=failure is not Failure.LOST
            )
            self._drop()
            again = time.monotonic() < deadline and failure is not Failure.FULL
            pause = min(0.05 * attempt, 0.5)
        if again:
            greenlets.pause(pause)
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
            greenlets.in_thread(partial(self._database.discard, self._session))
            self._session = None
