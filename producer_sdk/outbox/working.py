"""How a relay reaches the user's database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from client_core.local_database import LocalTransaction

__all__ = ["OpensDatabase", "RunsWork"]

ResultT = TypeVar("ResultT")


class RunsWork(Protocol):
    """Runs functions in transactions of their own on the user's database."""

    def __call__(self, work: Callable[[LocalTransaction], ResultT], wait: float | None = None) -> ResultT:
        """The function's result; `wait` limits how long it waits for locks."""
        ...


OpensDatabase: TypeAlias = Callable[[], AbstractContextManager[RunsWork]]
"""Opens the database for one thread."""
