"""The ends of queues as this broker left them: a guess at the next offsets, which the database verifies.

Taking offsets is a round trip, because what follows contains them. A queue that nobody else writes to has its end where
this broker's last COMMIT left it: then the update that takes them can be in one packet with all that follows. It
changes no row where the guess is wrong, and the work starts over without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.storage.engine.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.storage.engine.known_ends import KnownEnds

TRUSTED_AFTER = 3
"""Takes of this broker, one right behind the other, after which nobody else is expected to write to a queue."""
MOST = 20_000
"""Queues that are remembered."""

_TAKE = (
    "UPDATE queue SET stored_bytes = stored_bytes + ?, next_offset = next_offset + ?"
    " WHERE queue_id = ? AND next_offset = ? AND deleted_at IS NULL"
)


@dataclass(slots=True)
class _End:
    offset: int
    takes: int


class QueueEnds:
    """What this broker knows of the ends of queues; used by every lane."""

    def __init__(self, known: KnownEnds | None = None) -> None:
        """Takes where ends are noted for good, guesses or not."""
        self._ends: dict[int, _End] = {}
        self._known = known

    def guess(self, queue_ids: Iterable[int]) -> dict[int, int] | None:
        """The next offset of each of these queues; None if one of them is not known well enough."""
        if self._known is not None and self._known.went_back:
            # Whoever takes offsets without a guess is refused.
            return None
        guessed = {}
        for queue_id in queue_ids:
            end = self._ends.get(queue_id)
            if end is None or end.takes < TRUSTED_AFTER:
                return None
            guessed[queue_id] = end.offset
        return guessed

    def note(self, taken: Mapping[int, tuple[int, int]]) -> None:
        """Notes the first offset, and the one after the last, that were taken of each queue and are committed."""
        if self._known is not None:
            self._known.note({queue_id: after for queue_id, (_, after) in taken.items()})
        for queue_id, (first, after) in taken.items():
            end = self._ends.get(queue_id)
            if end is None:
                if len(self._ends) >= MOST:
                    for oldest in list(self._ends)[: MOST // 16 + 1]:
                        self._ends.pop(oldest, None)
                self._ends[queue_id] = _End(after, 1)
            elif after > end.offset:  # Lanes note theirs in any order.
                end.takes = end.takes + 1 if end.offset == first else 1
                end.offset = after

    def forget(self, queue_ids: Iterable[int]) -> None:
        """Drops guesses that were wrong."""
        for queue_id in queue_ids:
            self._ends.pop(queue_id, None)


def taking(guessed: Mapping[int, int], wanted: Mapping[int, tuple[int, int]]) -> list[Statement]:
    """Statements that take these offsets, and are unexpected where a guess is wrong.

    Args:
        guessed: the next offset of each queue.
        wanted: numbers of messages, and bytes of their bodies.
    """
    return [
        Statement(_TAKE, (wanted[queue_id][1], wanted[queue_id][0], queue_id, guessed[queue_id]), expected=1)
        for queue_id in sorted(wanted)
    ]
