"""The ends of queues as this process left them: whoever takes offsets and finds less has proof of a restore.

Under the lock of its row a queue is never shorter than a COMMIT of before has left it, unless the database was put back
to an earlier state. From then on this process stores nothing: its offsets were given before, for other messages. Of a
cluster a server may answer before it has applied what another one has committed: there it is a suspicion.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from broker.errors import StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST = 50_000
"""Queues that are remembered."""


class KnownEnds:
    """The next offsets of queues that are known to be committed; used by every thread.

    Attributes:
        went_back: whether the database was found in an earlier state.
        suspected: known ends of queues that were found to be shorter, in a cluster.
    """

    def __init__(self, *, of_cluster: bool = False) -> None:
        """Knows nothing yet."""
        self._ends: dict[int, int] = {}
        self._of_cluster = of_cluster
        self.went_back = False
        self.suspected: dict[int, int] = {}

    def of(self, queue_ids: Iterable[int]) -> dict[int, int]:
        """The known ends of these queues.

        Raises:
            StorageUnavailable: the database is in an earlier state than it was.
        """
        if self.went_back:
            raise _went_back()
        # Other threads note some meanwhile: one look for each.
        return {queue_id: end for queue_id in queue_ids if (end := self._ends.get(queue_id)) is not None}

    def compare(self, known: Mapping[int, int], found: Mapping[int, int]) -> None:
        """Compares known ends with those that were found afterwards, in rows that are locked.

        Raises:
            StorageUnavailable: the database is in an earlier state than it was.
        """
        shorter = {queue_id: end for queue_id, end in known.items() if found[queue_id] < end}
        if not shorter:
            return
        if self._of_cluster:
            self.suspected = shorter
        else:
            self.went_back = True
        raise _went_back()

    def note(self, ends: Mapping[int, int]) -> None:
        """Notes ends that are committed."""
        for queue_id, end in ends.items():
            # The last one is the newest. Another thread may note less at the same moment: then less is known.
            self._ends[queue_id] = max(end, self._ends.pop(queue_id, 0))
        if len(self._ends) > MOST:
            for oldest in list(self._ends)[: MOST // 16 + 1]:
                self._ends.pop(oldest, None)

    def sample(self, most: int) -> dict[int, int]:
        """The ends of some queues, and of suspected ones: in the database they are there or further."""
        known = list(self._ends.copy().items())
        return dict(known if len(known) <= most else random.sample(known, most)) | self.suspected


def _went_back() -> StorageUnavailable:
    return StorageUnavailable(
        "The database is in an earlier state than it was: it was restored, or a replica that lacks the latest"
        " transactions took its place. Nothing was stored; if it stays so, this broker ends."
    )
