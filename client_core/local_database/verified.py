"""The databases whose tables were compared with those that halfmq itself looks at."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from client_core.local_database.transactions import LocalTransaction

__all__ = ["VerifiedDatabases"]


class VerifiedDatabases:
    """Remembers engines, connections and names of connections, without keeping the former alive."""

    def __init__(self, by: Callable[[LocalTransaction], Hashable | None] = lambda local: local.known_by()) -> None:
        """Starts empty.

        Args:
            by: What stands for the database of a local transaction; None: only that one transaction.
        """
        self._by = by
        self._objects: weakref.WeakSet[Any] = weakref.WeakSet()
        self._names: set[Hashable] = set()

    def has(self, local: LocalTransaction) -> bool:
        """Whether the database of a local transaction was verified."""
        known_by = self._by(local)
        if known_by is None:
            return False
        return known_by in self._names if isinstance(known_by, str | tuple) else known_by in self._objects

    def add(self, local: LocalTransaction) -> None:
        """Remembers it."""
        known_by = self._by(local)
        if isinstance(known_by, str | tuple):
            self._names.add(known_by)
        elif known_by is not None:
            self._objects.add(known_by)
