"""Transactions that this broker prepared: what a verdict needs of their half messages, without reading them.

A guess: the verdict's first statement verifies that the database still has these half messages and no others, and the
work starts over with what is stored where it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.domain.keys import dedup_hash
from broker.storage.log.release_plan import HalfRow
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.ports.transactions import Half, PrepareWork

MOST = 8192
"""Transactions that are remembered; the oldest are dropped."""
MOST_HALVES = 8
"""Half messages of a transaction that is remembered."""
LONGEST_KEYS = 256
"""Characters of the keys of all half messages of a transaction, as they are stored."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is stored of a transaction without a check; the time of its first half messages in microseconds."""

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
            if item.checked and not item.first_position:
                self._keep(item.transaction_id, Prepared(item.producer_group_id, now, []), item.halves)

    def note_added(self, transaction_id: bytes, stored: int, added: Sequence[Half]) -> None:
        """Notes half messages that were added to a transaction and are committed.

        Args:
            transaction_id: of the transaction.
            stored: how many half messages it had before.
            added: those at the positions after them.
        """
        known = self._known.pop(transaction_id, None)
        if known is not None and len(known.halves) == stored:
            self._keep(transaction_id, known, added)

    def _keep(self, transaction_id: bytes, known: Prepared, added: Sequence[Half]) -> None:
        """Remembers a transaction with more half messages, unless they are many, or have to wait for their time."""
        if len(known.halves) + len(added) > MOST_HALVES or any(half.message.deliver_at is not None for half in added):
            return
        halves = known.halves + [_row(half) for half in added]
        if sum(len(half.message_keys or "") for half in halves) > LONGEST_KEYS:
            return
        self._known[transaction_id] = replace(known, halves=halves)
        if len(self._known) > MOST:
            # Some at a time: a list of all of them costs as much as many prepares.
            for oldest in list(self._known)[: MOST // 16 + 1]:
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


def _row(half: Half) -> HalfRow:
    """The values of HALF_COLUMNS."""
    message = half.message
    own = dedup_hash(message.dedup_key) if message.dedup_key else None
    keys = rows.encode_keys(message.keys)
    return HalfRow(half.topic_id, half.queue_no, message.priority or None, len(message.body), keys, None, own)
