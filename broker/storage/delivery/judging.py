"""Evaluates a group's filter before messages are claimed, outside of transactions.

Claims deliver evaluated messages, and do not evaluate filters themselves: a slow filter must not delay others. The
results are cached with the group while its epoch is unchanged: since neither messages nor the filter change, they stay
valid, and are at worst unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.filters.pacing import Steps
from broker.storage.delivery.filter_results import Judged, Wanted
from broker.storage.engine.statements import Statement, marks
from broker.storage.log.ranges import candidates, candidates_in
from broker.storage.log.reading import EXAMINED_AT_ONCE

if TYPE_CHECKING:
    from broker.domain.filters import Filter
    from broker.domain.topic import Topic
    from broker.ports.delivery import ClaimWork
    from broker.storage.catalog.directory import Directory
    from broker.storage.delivery.group_views import GroupMemory, GroupView
    from broker.storage.engine.session import Session

_FEWEST = 64
_BACKLOG = (
    "SELECT q.queue_id, q.priority, p.next_offset, q.next_offset, q.min_offset FROM group_progress p"
    " JOIN queue q ON q.queue_id = p.queue_id"
    " WHERE p.group_id = ? AND p.queue_id IN ({queue_ids}) AND q.next_offset > p.next_offset"
)


def judge(session: Session, item: ClaimWork, directory: Directory, groups: GroupMemory, rotation: int) -> None:
    """Evaluates the next messages in a consumer's queues, if its group has filters, as far as useful."""
    known = directory.by_ids(session, [topic.topic_id for topic in item.topics])
    places = {queue_id: (topic, n) for topic in known.values() for n, queue_id in enumerate(topic.queue_ids)}
    if not places:
        return
    group_id = item.group.group_id
    seen, behind = session.execute_all(
        [groups.look(group_id), Statement(_BACKLOG.format(queue_ids=marks(places)), (group_id, *places))]
    )
    view = groups.view(session, group_id, [(row[0], None) for row in seen.rows], 0)
    if view is None or view.group.paused_at is not None:
        return
    backlogs = [row for row in behind.rows if places[row[0]][0].topic_id in view.filters]
    start = rotation % len(backlogs) if backlogs else 0
    steps = Steps()
    for queue_id, _, following, end_offset, low in sorted(
        [*backlogs[start:], *backlogs[:start]], key=lambda backlog: -backlog[1]
    ):
        if item.abandoned or steps.spent:
            return
        topic, queue_no = places[queue_id]
        first = topic.gaps_of(queue_id).resume(max(following, low))
        _judge_queue(session, view, view.filters[topic.topic_id], (topic, queue_no), first, end_offset, item, steps)


def _judge_queue(
    session: Session,
    view: GroupView,
    wanted: Filter,
    place: tuple[Topic, int],
    first: int,
    end_offset: int,
    item: ClaimWork,
    steps: Steps,
) -> None:
    topic, queue_no = place
    queue_id = topic.queue_ids[queue_no]
    gaps = topic.gaps_of(queue_id)
    before = view.judged.get(queue_id)
    found = list((before.since(first) if before else None) or [])
    end = before.end if before and before.first <= first < before.end else first
    size = sum([each.size for each in found])
    span = max(_FEWEST, item.limit)
    while (
        gaps.resume(end) < end_offset
        and len(found) < item.limit
        and size < item.max_bytes
        and not steps.spent
        and not item.abandoned
    ):
        end = gaps.resume(end)
        count = min(EXAMINED_AT_ONCE, span, gaps.run_end(end, end_offset) - end)
        looked_at = candidates(topic.name, queue_no, session.execute_all([candidates_in(queue_id, end, count)])[0].rows)
        end += count
        for candidate in looked_at:
            if steps.spent:
                end = candidate.offset
                break
            if steps.judge(wanted, candidate):
                found.append(Wanted(candidate.offset, candidate.size, candidate.message_group))
                size += candidate.size
        # If few messages match, larger spans are evaluated at a time.
        span *= 2
    view.judged[queue_id] = Judged(first, end, found)
