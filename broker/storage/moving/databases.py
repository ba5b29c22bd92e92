"""The databases of the cells, for commands: sessions that run the steps of a move, with retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from broker.storage.engine.transaction_runner import TransactionRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session
    from broker.storage.engine.transaction_runner import Redo

Result = TypeVar("Result")

RECONNECT_TIMEOUT = 30.0
"""Seconds to try to reach a database, and to try again where others hold rows."""


class Databases:
    """Runs work in cells, by their numbers, one piece at a time."""

    def __init__(self, opened: Callable[[int], Database]) -> None:
        """Takes what opens a cell's database, which is called when it is first used."""
        self._opened = opened
        self._databases: dict[int, Database] = {}
        self._runners: dict[tuple[int, bool], TransactionRunner] = {}

    def read(self, cell: int, work: Callable[[Session], Result]) -> Result:
        """Runs work that only reads."""
        return self._runner(cell, reading=True).transact(work, write=False)

    def write(self, cell: int, work: Callable[[Session], Result], *, redo: Redo[Result] | None = None) -> Result:
        """Runs work as a database transaction, which is repeated where that is safe.

        Args:
            cell: number of the cell.
            work: idempotent, or with a `redo`.
            redo: used instead after a COMMIT without an answer.

        Raises:
            StorageUnavailable: the database cannot be reached, or others hold rows for too long.
        """
        return self._runner(cell, reading=False).transact(work, redo=redo)

    def _runner(self, cell: int, *, reading: bool) -> TransactionRunner:
        if cell not in self._databases:
            self._databases[cell] = self._opened(cell)
        if (cell, reading) not in self._runners:
            self._runners[cell, reading] = TransactionRunner(
                self._databases[cell], reconnect_timeout=RECONNECT_TIMEOUT, reading=reading, awaited=False
            )
        return self._runners[cell, reading]

    def close(self) -> None:
        """Closes what was opened."""
        for runner in self._runners.values():
            runner.close()
        for database in self._databases.values():
            database.close()
