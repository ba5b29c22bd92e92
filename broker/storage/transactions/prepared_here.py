"""Transactions that this broker prepared: what a verdict needs of their half messages, without reading them.

A guess: the verdict's first statement verifies that the database still has these half messages and no others, and the
work starts over with what is stored where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.domain.keys import dedup_hash
from broker.storage.log.release_plan import HalfRow
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.ports.transactions import PrepareWork

MOST = 8192
"""Transactions that are remembered; the oldest are dropped."""
MOST_HALVES = 8
"""Half messages of a transaction that is remembered."""
LONGEST_KEYS = 256
"""Characters of the keys of a half message, as they are stored."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is stored of a transaction without a check; the time in microseconds."""

    group_id: int
    born_at: int
    halves: list[HalfRow]


class PreparedHere:
    """Remembers what was prepared and has no verdict yet; used by the lanes of half messages and of verdicts."""

    def __init__(self) -> None:
        """Remembers nothing yet."""
        self._known: dict[bytes, Prepared] = {}

    def note(self, work: Iterable[PrepareWork], now: int) -> None:
        """Notes new transactions that are committed."""
        for item in work:
            if (halves := _halves(item)) is not None:
                self._known[item.transaction_id] = Prepared(item.producer_group_id, now, halves)
        for oldest in list(self._known)[: len(self._known) - MOST] if len(self._known) > MOST else ():
            self._known.pop(oldest, None)

    def find(self, ids: Iterable[bytes]) -> dict[bytes, Prepared] | None:
        """These transactions; None if one of them is not remembered."""
        found = {}
        for transaction_id in ids:
            known = self._known.get(transaction_id)
            if known is None:
                return None
            found[transaction_id] = known
        return found

    def forget(self, ids: Iterable[bytes]) -> None:
        """Drops transactions, if they are remembered."""
        for transaction_id in ids:
            self._known.pop(transaction_id, None)


def _halves(item: PrepareWork) -> list[HalfRow] | None:
    """The values of HALF_COLUMNS; None if they are many, or have to wait for their time."""
    if not item.checked or item.first_position or len(item.halves) > MOST_HALVES:
        return None
    halves = []
    for half in item.halves:
        message = half.message
        keys = rows.encode_keys(message.keys)
        if message.deliver_at is not None or (keys is not None and len(keys) > LONGEST_KEYS):
            return None
        own = dedup_hash(message.dedup_key) if message.dedup_key else None
        halves.append(
            HalfRow(half.topic_id, half.queue_no, message.priority or None, len(message.body), keys, None, own)
        )
    return halves
