"""Offsets of a query: JSON form, size of micro-batches, and partitioning of ranges.

Spark compares offsets as texts, so queues are always in the same order: by topic, then by number. The form includes the
topics' identities: a topic that was deleted and re-created has the same name, and other messages.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from consumer_sdk.reading import NO_GAPS, Gaps
from consumer_sdk.spark.bounds import TOPIC_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Offsets",
    "Queue",
    "QueueRange",
    "TopicIds",
    "as_json",
    "bounded",
    "from_json",
    "ranges_between",
    "replaced",
    "split",
    "topic_ids_of",
]

Queue: TypeAlias = tuple[str, int]
"""Topic and number of a queue."""

Offsets: TypeAlias = "dict[Queue, int]"
"""The next offset of every queue."""

TopicIds: TypeAlias = "dict[str, str]"
"""The identities of topics, by name, as far as they are known."""


@dataclass(frozen=True)
class QueueRange:
    """Messages of a queue at [start, end); `topic_id` is the topic's identity, unless empty."""

    topic: str
    queue: int
    start: int
    end: int
    topic_id: str = ""

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.end - self.start


def as_json(offsets: Mapping[Queue, int], topic_ids: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """Offsets in the form of Spark's checkpoint."""
    result: dict[str, dict[str, Any]] = {}
    topics = sorted({topic for topic, _ in offsets})
    if known := {topic: topic_ids[topic] for topic in topics if topic_ids and topic_ids.get(topic)}:
        result[TOPIC_IDS] = known
    for topic, queue in sorted(offsets):
        result.setdefault(topic, {})[str(queue)] = offsets[topic, queue]
    return result


def from_json(kept: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets from the form of Spark's checkpoint."""
    return {
        (topic, int(queue)): offset
        for topic, queues in kept.items()
        if topic != TOPIC_IDS
        for queue, offset in queues.items()
    }


def topic_ids_of(kept: Mapping[str, Mapping[str, Any]]) -> TopicIds:
    """The identities of the offsets' topics; missing in older checkpoints."""
    return dict(kept.get(TOPIC_IDS, {}))


def replaced(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The topics that are known to have been replaced."""
    return {topic for topic, own in before.items() if own and after.get(topic) and after[topic] != own}


def bounded(
    start: Mapping[Queue, int], head: Mapping[Queue, int], most: int, gaps: Mapping[Queue, Gaps] | None = None
) -> Offsets:
    """The end of a micro-batch of at most so many messages.

    Every queue gets a share of the limit by its backlog, so that none starves; the rounding remainder goes to the first
    ones.

    Args:
        start: Where it begins; queues that are not in it begin at 0.
        head: Where the queues end now.
        most: Maximum number of messages.
        gaps: Gaps in the offsets of queues.
    """
    gaps = gaps or {}
    waiting = {queue: gaps.get(queue, NO_GAPS).count(start.get(queue, 0), end) for queue, end in head.items()}
    total = sum(waiting.values())
    if total <= most:
        return {queue: max(start.get(queue, 0), head[queue]) for queue in sorted(head)}
    shares = {queue: waiting[queue] * most // total for queue in sorted(waiting)}
    left = most - sum(shares.values())
    # First those that would get nothing, as long as the others have more.
    for queue in sorted(shares, key=lambda queue: (shares[queue] > 0, queue)):
        if left and shares[queue] < waiting[queue]:
            shares[queue] += 1
            left -= 1
    return {
        queue: gaps.get(queue, NO_GAPS).behind(start.get(queue, 0), head[queue], share)
        for queue, share in shares.items()
    }


def ranges_between(
    start: Mapping[Queue, int],
    end: Mapping[Queue, int],
    topic_ids: Mapping[str, str] | None = None,
    gaps: Mapping[Queue, Gaps] | None = None,
) -> list[QueueRange]:
    """The ranges between two sets of offsets, by queue, without gaps; queues missing in the start begin at 0."""
    known, gaps = topic_ids or {}, gaps or {}
    return [
        QueueRange(*queue, low, high, known.get(queue[0], ""))
        for queue in sorted(end)
        for low, high in gaps.get(queue, NO_GAPS).runs(start.get(queue, 0), end[queue])
    ]


def split(ranges: Iterable[QueueRange], at_least: int | None, largest: int | None = None) -> list[QueueRange]:
    """Splits ranges until there are at least this many, as far as there are messages; the longest ones first.

    Args:
        ranges: The ranges.
        at_least: How many there should be; None: as they are.
        largest: Maximum number of messages of a range; None: no limit.
    """
    result = list(ranges)
    total = sum(each.count for each in result)
    more = at_least if at_least is not None and len(result) < at_least else 0
    pieces: list[QueueRange] = []
    for each in result:
        parts = max(1, -(-each.count // (largest or each.count)), min(each.count, -(-more * each.count // total)))
        cuts = [each.start + each.count * part // parts for part in range(parts + 1)]
        pieces += [replace(each, start=low, end=high) for low, high in itertools.pairwise(cuts)]
    return pieces
