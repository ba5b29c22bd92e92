"""Deletes rows of a fence that nothing will ask for.

A row is needed until the broker has recorded the outcome of its transaction: until then it may be asked for. So rows go
in two ways: those whose outcome the broker acknowledged to this process, some at a time; and those that processes left
which ended early, after the broker was asked where their transactions stand. Refusals of local transactions that may
still come stay for days.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from client_core.ids import MOST_IDS
from client_core.local_database import text_of
from client_core.states import TransactionState
from producer_sdk.fence.rows import COMMITTED, FIRST, id_of_age

if TYPE_CHECKING:
    from collections.abc import Callable

    from client_core.local_database import LocalDatabase
    from producer_sdk.fence.rows import FenceRows
    from producer_sdk.fence.settings import FenceSettings

__all__ = ["DecidedRows", "FenceCleaner", "is_final", "to_ask_about"]

_log = logging.getLogger("halfmq.producer")

AT_ONCE = 200
LOCK_WAIT = 1.0
"""Seconds to wait for a row that is to be deleted."""
PAUSE = 1.0
"""Seconds that decided rows are collected for."""
_MOST_WAITING = 100_000
"""Ids kept for deletion while the database does not answer; what is more is left to the search for leftovers."""


class DecidedRows:
    """Ids of rows that can go; safe to share between threads."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._ids: list[str] = []

    def add(self, transaction_ids: list[str]) -> int:
        """Notes rows; how many wait."""
        with self._lock:
            self._ids += transaction_ids[: _MOST_WAITING - len(self._ids)]
            return len(self._ids)

    def take(self) -> list[str]:
        """Some of them."""
        with self._lock:
            part, self._ids = self._ids[:AT_ONCE], self._ids[AT_ONCE:]
            return part


class FenceCleaner:
    """Works in a thread of its own while producers use the fence; it begins with the first decided row."""

    def __init__(
        self, database: LocalDatabase, rows: FenceRows, settings: FenceSettings, identity: Callable[[], str]
    ) -> None:
        """Takes what to delete from, and what tells which table that is; starts nothing."""
        self._database = database
        self._identity = identity
        self._rows = rows
        self._settings = settings
        self._asking: list[Callable[[str], TransactionState | None]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._decided = DecidedRows()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def attach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """Takes what asks the broker where a transaction stands; None as answer: it knows nothing of it."""
        with self._lock:
            self._asking.append(ask)

    def decided(self, transaction_id: str) -> None:
        """Notes a row that can go."""
        if self._process != os.getpid():
            # A fork: the thread and the producers are the parent's.
            self._process, self._thread, self._asking = os.getpid(), None, self._asking[-1:]
        if self._decided.add([transaction_id]) >= AT_ONCE:
            self._wake.set()
        if self._thread is None:
            with self._lock:
                if self._thread is None and self._asking:
                    self._thread = threading.Thread(target=self._run, name="halfmq-fence", daemon=True)
                    self._thread.start()

    def clean(self) -> int:
        """Deletes what can go now; how many rows."""
        return self._delete_decided() + self._delete_leftovers()

    def detach(self, ask: Callable[[str], TransactionState | None]) -> None:
        """One producer closes. With the last one the thread ends, after it deleted what is known to be decided."""
        with self._lock:
            if ask in self._asking:
                self._asking.remove(ask)
            if self._asking:
                return
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join(timeout=5.0)

    def _run(self) -> None:
        look_at = time.monotonic() + self._settings.clean_every
        while True:
            self._wake.wait(PAUSE)
            self._wake.clear()
            try:
                self._delete_decided()
                if self._settings.clean_every and time.monotonic() >= look_at:
                    look_at = time.monotonic() + self._settings.clean_every
                    self._delete_leftovers()
            except Exception as error:
                _log.warning("rows of the fence cannot be deleted now: %s; trying again", text_of(error))
                time.sleep(PAUSE)
            if self._thread is not threading.current_thread():
                return

    def _delete_decided(self) -> int:
        count = 0
        while part := self._decided.take():
            try:
                count += self._delete(part)
            except BaseException:
                self._decided.add(part)
                raise
        return count

    def _delete(self, transaction_ids: list[str]) -> int:
        # A row that another transaction holds is left to the next time.
        with self._database.transaction(LOCK_WAIT) as local:
            return self._rows.delete(local, transaction_ids)

    def _delete_leftovers(self) -> int:
        count, after, identity = 0, FIRST, self._identity()
        # The newest producer: in a forked child those of the parent cannot ask.
        while asking := self._asking[-1:]:
            with self._database.transaction() as local:
                found = self._rows.between(local, after, id_of_age(self._settings.leftover_after), identity)
            if not found:
                break
            after = found[-1][0]
            wanted = to_ask_about(found, self._settings)
            if done := [each for each in wanted if is_final(asking[0](each), each, self._settings)]:
                try:
                    count += self._delete(done)
                except Exception as error:
                    # A row of this page is held; the next pages go on, and this one has its turn at the next search.
                    text = "rows of the fence cannot be deleted now: %s; trying again"
                    _log.warning(text, text_of(error), extra={"transaction_ids": done[:MOST_IDS]})
        return count


def to_ask_about(found: list[tuple[str, str]], settings: FenceSettings) -> list[str]:
    """The rows that can go where the broker has decided: all that say committed, and old refusals."""
    refused_before = id_of_age(settings.keep_refused)
    return [each for each, state in found if state == COMMITTED or each < refused_before]


def is_final(state: TransactionState | None, transaction_id: str, settings: FenceSettings) -> bool:
    """Whether the broker never asks about a transaction again.

    It is decided; or the broker knows nothing of it, and it is so old that another broker, which might, has asked.
    """
    if state is None:
        return transaction_id < id_of_age(settings.keep_refused)
    return state in {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}
