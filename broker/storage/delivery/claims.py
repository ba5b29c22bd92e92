"""Claims: deliveries to consumers, batched for all consumers that ask at the same time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from broker.errors import BrokerError, NotFound
from broker.ports.delivery import Claimed, ClaimWork, GroupNews
from broker.storage.delivery import delivery_events
from broker.storage.delivery.backlog import Backlog, progress_of
from broker.storage.delivery.dispatch import dispatch
from broker.storage.delivery.handout import Budget, Handout
from broker.storage.delivery.redelivery import redeliver
from broker.storage.engine.statements import Statement, marks
from broker.storage.groups.groups import epochs
from broker.storage.groups.progress import join

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from broker.domain.topic import Topic
    from broker.storage.catalog.directory import Directory
    from broker.storage.delivery.group_views import GroupMemory, GroupView
    from broker.storage.delivery.handout import TopicQueue
    from broker.storage.engine.session import Session

TAKE_OVERS_AT_ONCE = 64
LARGEST_HAND_OUT = 8 * 1024 * 1024
"""Approximate bytes of bodies delivered by one database transaction; consumers left without are served next."""

# Only of queues the consumer reads: leases on a topic that is no longer read would fill the limit permanently.
DUE_LEASES = (
    "SELECT lease_id, queue_id FROM lease{index} WHERE group_id = ? AND available_at <= ? AND queue_id IN ({queue_ids})"
    " ORDER BY available_at LIMIT ?"
)

# Queues with undelivered messages, and those that the topic got after the group had joined it.
_BACKLOG = (
    "SELECT q.queue_id, q.priority, p.next_offset, q.next_offset, q.min_offset FROM queue q{by_key}"
    " LEFT JOIN group_progress p ON p.group_id = ? AND p.queue_id = q.queue_id"
    " WHERE q.queue_id IN ({queue_ids}) AND (p.next_offset IS NULL OR q.next_offset > p.next_offset)"
)


def claim(
    session: Session,
    work: Sequence[ClaimWork],
    now: int,
    directory: Directory,
    groups: GroupMemory,
    rotation: int,
    *,
    keep_history: bool = True,
) -> list[Claimed | BrokerError]:
    """Delivers messages to each consumer: first expired and nacked ones, then new ones.

    Raises:
        NotFound: a group or topic was deleted while a consumer was served. Nothing may be committed then: its messages
            would have no owner until the lease expires.
    """
    wishes: dict[int, list[ClaimWork]] = defaultdict(list)
    for item in work:
        if item.topics and not item.abandoned:
            wishes[item.group.group_id].append(item)
    counters: dict[int, _Counter | NotFound] = {}
    outcomes: list[Claimed | BrokerError] = []
    size = 0
    for item in work:
        # Consumers that gave up since the batch began get nothing either.
        if item.abandoned or not item.topics:
            outcomes.append(Claimed([]))
            continue
        if size >= LARGEST_HAND_OUT:
            outcomes.append(Claimed([], more=True))
            continue
        group_id = item.group.group_id
        counter = counters.get(group_id)
        if counter is None:
            try:
                counter = _open_counter(
                    session, group_id, wishes[group_id], now, directory, groups, rotation, keep_history=keep_history
                )
            except NotFound as error:
                counter = error
                error.as_outcome()
            counters[group_id] = counter
        if isinstance(counter, NotFound):
            outcomes.append(counter)
            continue
        served = counter.serve(item)
        if isinstance(served, Claimed):
            size += served.size
        outcomes.append(served)
    opened = [each for each in counters.values() if isinstance(each, _Counter)]
    for each in opened:
        session.finish(progress_of(each.handout.view.group.group_id, each.backlogs))
    session.finish(delivery_events.recording(session, [event for each in opened for event in each.handout.events]))
    return outcomes


def were_made(session: Session, before: Sequence[Claimed | BrokerError]) -> bool:
    """Whether claims whose COMMIT got no answer were committed; `before` are their deliveries.

    If the COMMIT took effect, its leases exist, under tokens that are unique to it; their numbers are noted. Those that
    exist no longer have expired meanwhile, and others have their messages: they are taken out of the deliveries.
    """
    made = [claimed for claimed in before if isinstance(claimed, Claimed)]
    parts = [part for claimed in made for part in claimed.parts]
    found = numbers(
        session,
        {(claimed.group_id, part.expires_at) for claimed in made for part in claimed.parts},
        [part.lease_id for part in parts if part.lease_id],
    )
    # Leases of other claims may end at the same time.
    if not any(part.token in found for part in parts):
        return False
    for claimed in made:
        kept = [part for part in claimed.parts if part.token in found]
        claimed.more |= len(kept) < len(claimed.parts)
        claimed.parts = kept
        for part in kept:
            part.lease_id = found[part.token]
    return True


def numbers(session: Session, ends: Iterable[tuple[int, int]], known: Sequence[int] = ()) -> dict[int, int]:
    """The numbers of leases, by their tokens, from their groups and ends. Uses lease_available.

    Waits for a claim that has not taken effect yet: its last packet, with the leases, may still be on its way. Until
    then it holds the groups' progress, or the leases that it took over.

    Args:
        session: a transaction.
        ends: groups and ends of leases.
        known: numbers of leases that were taken over.
    """
    dialect, ends = session.dialect, sorted(ends)
    progress = f"SELECT queue_id FROM group_progress{dialect.by_key} WHERE group_id = ? ORDER BY queue_id"
    for group_id in sorted({group_id for group_id, _ in ends}):
        session.fetch(f"{progress}{dialect.for_update}", (group_id,))
    if known:
        query = f"SELECT lease_id FROM lease{dialect.by_key} WHERE lease_id"
        session.fetch_in(query, sorted(known), f" ORDER BY lease_id{dialect.for_update}")
    query = (
        f"SELECT token, lease_id FROM lease{dialect.by_index('lease_available')}"
        f" WHERE group_id = ? AND available_at = ?{dialect.for_update}"
    )
    return dict(row for end in ends for row in session.fetch(query, end))


def news_of(
    session: Session, groups: Mapping[int, Collection[int]], now: int, directory: Directory
) -> dict[int, GroupNews]:
    """Updates for consumers of some groups and topics; deleted groups are omitted.

    Reads two rows and one entry of lease_available per group; if leases are due, the due ones up to the first one of
    these topics.
    """
    known = epochs(session, list(groups))
    running = [i for i in groups if i in known and not known[i][1]]
    earliest = session.fetch_each(
        "SELECT ? AS own, MIN(available_at) FROM lease WHERE group_id = ?",
        [(group_id, group_id) for group_id in running],
    )
    due = {
        group_id
        for group_id, available_at in earliest
        if available_at is not None
        and available_at <= now
        and _is_due(session, group_id, now, _places(directory.by_ids(session, groups[group_id])))
    }
    return {i: GroupNews(known[i][0], i in due) for i in groups if i in known}


def _is_due(session: Session, group_id: int, now: int, queue_ids: Collection[int]) -> bool:
    return bool(queue_ids and session.execute_all([looking_for_due(session, group_id, now, queue_ids, 1)])[0].rows)


def looking_for_backlog(session: Session, group_id: int, queue_ids: Collection[int]) -> Statement:
    """Statement for a group's backlog in some queues. By primary key."""
    sql = _BACKLOG.format(by_key=session.dialect.by_key, queue_ids=marks(queue_ids))
    return Statement(sql, (group_id, *queue_ids))


def looking_for_due(session: Session, group_id: int, now: int, queue_ids: Collection[int], limit: int) -> Statement:
    """Statement for available leases. Uses lease_available."""
    sql = DUE_LEASES.format(index=session.dialect.by_index("lease_available"), queue_ids=marks(queue_ids))
    return Statement(sql, (group_id, now, *queue_ids, limit))


def _places(topics: Mapping[int, Topic]) -> dict[int, TopicQueue]:
    return {queue_id: (topic, n) for topic in topics.values() for n, queue_id in enumerate(topic.queue_ids)}


class _Counter:
    """Serves the consumers of one group, one after the other, whatever topics each of them reads.

    There is one per group in a database transaction: its view of a queue reflects the consumers served before.
    """

    def __init__(
        self,
        handout: Handout,
        lists: Mapping[frozenset[int], _TopicList],
        due: dict[int, int],
        backlogs: Sequence[Backlog],
    ) -> None:
        self.handout = handout
        self._lists = lists
        self._due = due
        self.backlogs = backlogs

    def serve(self, item: ClaimWork) -> Claimed | BrokerError:
        topics = self._lists.get(_topics_of(item))
        if topics is None:
            return _topic_deleted()
        budget = Budget(item.limit, item.max_bytes)
        claimed = Claimed([], group_id=item.group.group_id)
        if due := [lease_id for lease_id, queue_id in self._due.items() if queue_id in topics.queue_ids]:
            for lease in redeliver(self.handout, item, due, budget, claimed):
                del self._due[lease]
        backlogs = [backlog for backlog in self.backlogs if backlog.queue_id in topics.queue_ids]
        for backlog in backlogs:
            if not budget.left:
                break
            dispatch(self.handout, item, backlog, budget, claimed)
        claimed.more = (
            topics.more_due
            or self.handout.freed
            or any(queue_id in topics.queue_ids for queue_id in self._due.values())
            or any(backlog.left for backlog in backlogs)
        )
        return claimed


def _open_counter(
    session: Session,
    group_id: int,
    wishes: Sequence[ClaimWork],
    now: int,
    directory: Directory,
    groups: GroupMemory,
    rotation: int,
    *,
    keep_history: bool,
) -> _Counter:
    """Reads a group's settings, its progress, and available leases.

    Raises:
        NotFound: the group was deleted, or all requested topics.
    """
    named = {_topics_of(item) for item in wishes}
    known = directory.by_ids(session, frozenset().union(*named))
    places = _places(known)
    # One query per list of topics: a common one would be filled by topics that most consumers do not read.
    lists = {
        topic_ids: _TopicList([queue_id for i in topic_ids for queue_id in known[i].queue_ids])
        for topic_ids in named
        if topic_ids <= known.keys()
    }
    if not lists:
        raise _topic_deleted()
    seen, behind, *due = session.execute_all(
        [
            groups.look(group_id),
            looking_for_backlog(session, group_id, places),
            # The rows are locked by primary key, later.
            *[looking_for_due(session, group_id, now, each.queue_ids, TAKE_OVERS_AT_ONCE) for each in lists.values()],
        ]
    )
    view = groups.view(session, group_id, seen.rows, now)
    if view is None:
        raise NotFound("The consumer group was deleted.", reason="GROUP_NOT_FOUND", field="consumer_group")
    handout = Handout(session, view, places, directory, now, keep_history)
    if view.group.paused_at is not None:
        return _Counter(handout, lists, {}, [])
    leases: dict[int, int] = {}
    for each, found in zip(lists.values(), due, strict=True):
        leases.update(found.rows)
        each.more_due = len(found.rows) == TAKE_OVERS_AT_ONCE
    return _Counter(handout, lists, leases, _behind(session, view, behind.rows, rotation, places))


def _behind(
    session: Session, view: GroupView, found: Sequence[Sequence[int]], rotation: int, places: Mapping[int, TopicQueue]
) -> list[Backlog]:
    if any(row[2] is None for row in found):
        join(session, view.group, {topic.topic_id: topic for topic, _ in places.values()}.values())
    backlogs = [
        Backlog(queue_id, priority, following or 0, end, low, gaps=places[queue_id][0].gaps_of(queue_id))
        for queue_id, priority, following, end, low in found
    ]
    # In rotation, so that no queue starves; but higher priorities first.
    start = rotation % len(backlogs) if backlogs else 0
    return sorted([*backlogs[start:], *backlogs[:start]], key=lambda backlog: -backlog.priority)


class _TopicList:
    """Topics that some consumers of a group read; `more_due`: more of their leases are due than one query returns."""

    def __init__(self, queue_ids: Sequence[int]) -> None:
        self.queue_ids = dict.fromkeys(queue_ids)
        self.more_due = False


def _topics_of(item: ClaimWork) -> frozenset[int]:
    return frozenset([topic.topic_id for topic in item.topics])


def _topic_deleted() -> NotFound:
    return NotFound("A topic was deleted.", reason="TOPIC_NOT_FOUND", field="topics")
