"""Where a shard goes on with each of its queues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfmq_connect.kafka.errors import TopicReplaced
from halfmq_connect.kafka.feed import QueueAt
from halfmq_connect.kafka.positions import begun, position, shard_of
from halfmq_connect.kafka.registry import note_starts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumer_sdk.reading import QueueOffset
    from halfmq_connect.kafka.plan import Plan
    from halfmq_connect.kafka.positions import Entry, Positions

__all__ = ["note_latest", "starting_offsets"]

_log = logging.getLogger("halfmq.kafka")


def note_latest(plan: Plan, *, anew: bool) -> None:
    """Notes where topics end that are to be carried from their end, when a replica first starts with them.

    For all shards: one that begins later, perhaps because a replica without that topic had it, begins there as well.

    Args:
        plan: What is carried.
        anew: What was noted before is no longer of use.
    """
    ends = {topic: plan.queue_offsets(topic) for topic in plan.routes}

    def wanted(noted: Mapping[str, int]) -> dict[str, int]:
        known = set() if anew else {queue.rpartition("/")[0] for queue in noted}
        return {
            _start_of(queue): queue.max_offset
            for queues in ends.values()
            for queue in queues
            if queue.topic_id not in known
        }

    plan.starts = note_starts(plan.cluster, plan.client, plan.name, wanted, anew=anew)


def _start_of(queue: QueueOffset) -> str:
    return f"{queue.topic_id}/{queue.queue}"


def starting_offsets(plan: Plan, shard: int, positions: Positions) -> tuple[dict[QueueAt, int], list[Entry]]:
    """The offsets that a shard's queues are carried from, and what is to be written down before.

    Raises:
        TopicReplaced: A topic is not the one that was carried, unless `skip_missing` is set.
        HalfmqError: halfmq does not answer, or refuses.
    """
    starts: dict[QueueAt, int] = {}
    entries: list[Entry] = []
    for topic in plan.routes:
        queues = plan.queue_offsets(topic)
        topic_id = queues[0].topic_id
        before = positions.topics.get(topic)
        if before not in {None, topic_id}:
            _lost(
                plan, f"the topic {topic!r} was deleted and created anew; what was not carried of the old one is gone"
            )
        if before != topic_id:
            entries.append(begun(topic, topic_id, plan.settings.shards))
        for queue in queues:
            if shard_of(topic, queue.queue, plan.settings.shards) != shard:
                continue
            known_id, known = positions.queues.get((topic, queue.queue), ("", 0))
            here = QueueAt(topic, topic_id, queue.queue)
            if known_id == topic_id and known <= queue.max_offset and queue.gaps.lost(known) is None:
                starts[here] = known
                continue
            starts[here] = _first(plan, queue, before, ahead=known if known_id == topic_id else None)
            entries.append(position(topic, topic_id, queue.queue, starts[here]))
    return starts, entries


def _first(plan: Plan, queue: QueueOffset, before: str | None, ahead: int | None) -> int:
    """Where a queue begins that has no position, or one ahead of its end."""
    if ahead is not None and (gap := queue.gaps.lost(ahead)) is not None:
        _lost(
            plan,
            f"queue {queue.queue} ended at {gap.first_offset} when the database was restored, and was carried up to"
            f" {ahead}. Messages that it has lost are in Kafka; it goes on at {gap.end_offset}, without missing any",
        )
        return gap.end_offset
    if ahead is not None:
        _lost(
            plan,
            f"queue {queue.queue} ends at {queue.max_offset}, and was carried up to {ahead}: was the database restored?"
            " Messages that it has lost are in Kafka, and new ones get their offsets",
        )
        return queue.max_offset
    if before is None and plan.settings.start == "latest":
        # One that was added since it was noted is carried from its first message on.
        return min(plan.starts.get(_start_of(queue), 0), queue.max_offset)
    # A queue that was added to a topic that is carried: from its first message on.
    return queue.min_offset if before is None else 0


def _lost(plan: Plan, what: str) -> None:
    if not plan.settings.skip_missing:
        msg = f"{what}. To go on with what is there, set skip_missing (--skip-missing)"
        raise TopicReplaced(msg, reason="TOPIC_REPLACED")
    _log.warning("going on, as skip_missing says: %s", what, extra={"bridge": plan.name})
