"""Claims: what consumers are handed, together for all consumers that ask at the same time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker.errors import BrokerError, NotFound
from broker.services.work import Claimed, ClaimWork, GroupNews
from broker.storage import history
from broker.storage.desk import Desk, Room
from broker.storage.groups import epochs
from broker.storage.handing_out import Backlog, hand_out
from broker.storage.progress import join
from broker.storage.session import Session, Statement, marks
from broker.storage.taking_over import take_over

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.domain.topic import Topic
    from broker.storage.desk import Place
    from broker.storage.directory import Directory
    from broker.storage.groups import GroupMemory, GroupView

TAKE_OVERS_AT_ONCE = 64
LARGEST_HAND_OUT = 8 * 1024 * 1024
"""Bytes of bodies, about, that one database transaction hands out; whoever is left without comes again."""

# Only of queues the consumer reads: leases on a topic that nobody reads any more would fill the limit for ever.
DUE_LEASES = (
    "SELECT lease_id FROM lease{index} WHERE group_id = ? AND available_at <= ? AND queue_id IN ({queue_ids})"
    " ORDER BY available_at LIMIT ?"
)

# The queues where something was never handed out, and those that the topic got after the group had joined it.
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
    turn: int,
    *,
    keep_history: bool = True,
) -> list[Claimed | BrokerError]:
    """Hands out messages to each consumer: first what expired or was given back, then new ones."""
    counters: dict[tuple[int, tuple[int, ...]], _Counter] = {}
    outcomes: list[Claimed | BrokerError] = []
    size = 0
    for item in work:
        if item.abandoned or not item.topics:
            outcomes.append(Claimed([]))
            continue
        if size >= LARGEST_HAND_OUT:
            outcomes.append(Claimed([], more=True))
            continue
        key = (item.group.group_id, tuple(topic.topic_id for topic in item.topics))
        counter = counters.get(key)
        try:
            if counter is None:
                counter = _Counter(
                    session, key[0], item.topics, now, directory, groups, turn, keep_history=keep_history
                )
                counters[key] = counter
            served = counter.serve(item)
            size += served.size
            outcomes.append(served)
        except NotFound as error:
            outcomes.append(error.as_outcome())
    events = [event for counter in counters.values() for event in counter.desk.events]
    session.together(history.recording(session, events))
    return outcomes


def were_made(session: Session, before: list[Claimed | BrokerError]) -> bool:
    """Whether claims were committed whose COMMIT got no answer; `before` is what was to be handed out then.

    When that COMMIT worked, its leases are there, under tokens that nobody else can have made.
    """
    parts = [part for claimed in before if isinstance(claimed, Claimed) for part in claimed.parts]
    found = session.fetch_in("SELECT token FROM lease WHERE lease_id", [part.lease_id for part in parts])
    return bool({part.token for part in parts} & {row[0] for row in found})


def news_of(
    session: Session, groups: Mapping[int, Collection[int]], now: int, directory: Directory
) -> dict[int, GroupNews]:
    """What consumers of some groups should know who read these topics; groups that were deleted are left out.

    Reads two rows and one entry of lease_available a group; where something is due, the due leases up to the first one
    of these topics.
    """
    known = epochs(session, list(groups))
    running = [i for i in groups if i in known and not known[i][1]]
    earliest = session.fetch_each(
        "SELECT ?, MIN(available_at) FROM lease WHERE group_id = ?", [(group_id, group_id) for group_id in running]
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
    return bool(queue_ids and session.together([_looking_for_due(session, group_id, now, queue_ids, 1)])[0].rows)


def _looking_for_due(session: Session, group_id: int, now: int, queue_ids: Collection[int], limit: int) -> Statement:
    """Asks for leases that can be taken. Uses lease_available."""
    sql = DUE_LEASES.format(index=session.dialect.by_index("lease_available"), queue_ids=marks(queue_ids))
    return Statement(sql, (group_id, now, *queue_ids, limit))


def _places(topics: Mapping[int, Topic]) -> dict[int, Place]:
    return {queue_id: (topic, n) for topic in topics.values() for n, queue_id in enumerate(topic.queue_ids)}


class _Counter:
    """Where the consumers of one group that read the same topics are served, one after the other."""

    def __init__(
        self,
        session: Session,
        group_id: int,
        topics: Sequence[Topic],
        now: int,
        directory: Directory,
        groups: GroupMemory,
        turn: int,
        *,
        keep_history: bool,
    ) -> None:
        known = directory.by_ids(session, [topic.topic_id for topic in topics])
        if len(known) != len(topics):
            raise NotFound("A topic was deleted.", reason="TOPIC_NOT_FOUND", field="topics")
        places = _places(known)
        seen, due, behind = session.together(
            [
                groups.look(group_id),
                # The rows are locked by primary key, later.
                _looking_for_due(session, group_id, now, places, TAKE_OVERS_AT_ONCE),
                Statement(_BACKLOG.format(by_key=session.dialect.by_key, queue_ids=marks(places)), (group_id, *places)),
            ]
        )
        view = groups.view(session, group_id, seen.rows, now)
        if view is None:
            raise NotFound("The consumer group was deleted.", reason="GROUP_NOT_FOUND", field="consumer_group")
        self.desk = Desk(session, view, places, directory, now, keep_history)
        paused = view.group.paused_at is not None
        self._due = deque([] if paused else [row[0] for row in due.rows])
        self._more_due = len(self._due) == TAKE_OVERS_AT_ONCE
        self._backlogs = [] if paused else self._behind(session, view, behind.rows, turn, list(known.values()))

    @staticmethod
    def _behind(
        session: Session, view: GroupView, found: Sequence[Sequence[int]], turn: int, topics: Sequence[Topic]
    ) -> list[Backlog]:
        if any(row[2] is None for row in found):
            join(session, view.group, topics)
        backlogs = [
            Backlog(queue_id, priority, following or 0, head, low) for queue_id, priority, following, head, low in found
        ]
        # By turns, so that no queue starves; but the higher priority first.
        start = turn % len(backlogs) if backlogs else 0
        return sorted([*backlogs[start:], *backlogs[:start]], key=lambda backlog: -backlog.priority)

    def serve(self, item: ClaimWork) -> Claimed:
        room = Room(item.limit, item.max_bytes)
        claimed = Claimed([])
        if self._due:
            take_over(self.desk, item, self._due, room, claimed)
        for backlog in self._backlogs:
            if not room.left:
                break
            hand_out(self.desk, item, backlog, room, claimed)
        claimed.more = self._more_due or self.desk.freed or bool(self._due) or any(b.left for b in self._backlogs)
        return claimed
