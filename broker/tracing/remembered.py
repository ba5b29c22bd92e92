"""Contexts of messages that wait for the verdict on their transaction."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_TRANSACTIONS = 10_000
MOST_CONTEXTS = 100_000
"""Of all transactions together: some 10 MB."""
MOST_OF_ONE = 128


class RememberedContexts:
    """Contexts by transaction; those that were remembered first go when there are too many."""

    __slots__ = ("_by_transaction", "_count")

    def __init__(self) -> None:
        """Starts empty."""
        self._by_transaction: OrderedDict[bytes, list[str]] = OrderedDict()
        self._count = 0

    def add(self, transaction_id: bytes, contexts: Iterable[str]) -> None:
        """Remembers contexts, the first 128 of a transaction."""
        known = self._by_transaction.get(transaction_id, [])
        now = list(dict.fromkeys([*known, *contexts]))[:MOST_OF_ONE]
        self._by_transaction[transaction_id] = now
        self._count += len(now) - len(known)
        while len(self._by_transaction) > MOST_TRANSACTIONS or self._count > MOST_CONTEXTS:
            self._count -= len(self._by_transaction.popitem(last=False)[1])

    def pop(self, transaction_id: bytes) -> list[str]:
        """Those of a transaction, which are forgotten."""
        found = self._by_transaction.pop(transaction_id, [])
        self._count -= len(found)
        return found
