"""Offsets of a query: their JSON form, how much a micro-batch takes, and how ranges become partitions.

Spark compares offsets as texts, so queues are always in the same order: by topic, then by number.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Offsets", "Queue", "QueueRange", "as_json", "bounded", "from_json", "ranges_between", "split"]

Queue: TypeAlias = tuple[str, int]
"""Topic and number of a queue."""

Offsets: TypeAlias = "dict[Queue, int]"
"""The next offset of every queue."""


@dataclass(frozen=True)
class QueueRange:
    """Messages of a queue at [start, end)."""

    topic: str
    queue: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets that are."""
        return self.end - self.start


def as_json(offsets: Mapping[Queue, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark keeps them in its checkpoint."""
    result: dict[str, dict[str, int]] = {}
    for topic, queue in sorted(offsets):
        result.setdefault(topic, {})[str(queue)] = offsets[topic, queue]
    return result


def from_json(kept: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Offsets from the form that Spark keeps."""
    return {(topic, int(queue)): offset for topic, queues in kept.items() for queue, offset in queues.items()}


def bounded(start: Mapping[Queue, int], head: Mapping[Queue, int], most: int) -> Offsets:
    """Where a micro-batch of at most so many messages ends.

    Every queue gives its share of what waits, so that none starves; what rounding leaves goes to the first ones.

    Args:
        start: Where it begins; queues that are not in it begin at 0.
        head: Where the queues end now.
        most: Messages that it may have.
    """
    waiting = {queue: max(0, end - start.get(queue, 0)) for queue, end in head.items()}
    total = sum(waiting.values())
    if total <= most:
        return {queue: start.get(queue, 0) + waiting[queue] for queue in sorted(head)}
    shares = {queue: waiting[queue] * most // total for queue in sorted(waiting)}
    left = most - sum(shares.values())
    # First those that would get nothing, for as long as the others have more.
    for queue in sorted(shares, key=lambda queue: (shares[queue] > 0, queue)):
        if left and shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {queue: start.get(queue, 0) + share for queue, share in shares.items()}


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[QueueRange]:
    """What lies between two sets of offsets, by queue; queues that were not there at the start begin at 0."""
    ranges = [QueueRange(*queue, start.get(queue, 0), end[queue]) for queue in sorted(end)]
    return [each for each in ranges if each.count > 0]


def split(ranges: Iterable[QueueRange], at_least: int | None) -> list[QueueRange]:
    """Cuts ranges until there are at least so many, as far as there are messages; the longest ones first."""
    result = list(ranges)
    if at_least is None or not result or len(result) >= at_least:
        return result
    total = sum(each.count for each in result)
    pieces: list[QueueRange] = []
    for each in result:
        parts = min(each.count, -(-at_least * each.count // total))
        cuts = [each.start + each.count * part // parts for part in range(parts + 1)]
        pieces += [QueueRange(each.topic, each.queue, low, high) for low, high in itertools.pairwise(cuts)]
    return pieces
