"""How a relay reaches the user's database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from client_core.local_database import Failure, dialect_of

if TYPE_CHECKING:
    from client_core.local_database import LocalTransaction

__all__ = ["LOCK_WAIT", "OpensDatabase", "RunsWork", "is_locked"]

ResultT = TypeVar("ResultT")

LOCK_WAIT = 1.0
"""Seconds that a change of the relay's own waits for a lock."""


class RunsWork(Protocol):
    """Runs functions in transactions of their own on the user's database."""

    def __call__(self, work: Callable[[LocalTransaction], ResultT], wait: float | None = None) -> ResultT:
        """The function's result; `wait` limits how long it waits for locks."""
        ...


OpensDatabase: TypeAlias = Callable[[], AbstractContextManager[RunsWork]]
"""Opens the database for one thread."""


def is_locked(error: Exception) -> bool:
    """Whether another transaction held a lock for too long, or the two would have waited for one another."""
    return any(
        dialect_of(name).failure_of(error) in {Failure.LOCKED, Failure.CONFLICT}
        for name in ("mysql", "postgresql", "sqlite")
    )
