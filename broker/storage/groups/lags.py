"""The lag of many consumer groups at once, by group and topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from broker.domain.dead_letter import dead_letter_topic
from broker.domain.gaps import NO_GAPS
from broker.domain.group import GroupMode
from broker.domain.topic import QueueState
from broker.ports.groups import GroupLag
from broker.storage.catalog.gaps import gaps_of, gaps_since
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.domain.topic import Topic
    from broker.storage.engine.session import Session

GROUPS_AT_ONCE = 100
MOST_STATES = 10_000
"""Queues of members after which a page ends: broadcasting groups have any number of members."""


def group_lags(session: Session, groups: Sequence[ConsumerGroup], topic: Topic | None) -> tuple[list[GroupLag], int]:
    """The lag of some groups, and how many of these groups it is of: as many as fit into a page.

    A group that never read a topic has one entry without one; with `topic`, none. Reads by primary key, by
    group_members, lease_queue and topic_name.
    """
    found: list[GroupLag] = []
    states = done = 0
    while done < len(groups) and states < MOST_STATES:
        some = groups[done : done + GROUPS_AT_ONCE]
        own, count = _lags(session, some, topic)
        found += own
        states += count
        done += len(some)
    return found, done


def _lags(session: Session, groups: Sequence[ConsumerGroup], topic: Topic | None) -> tuple[list[GroupLag], int]:
    members = {group.group_id: group.group_id for group in groups}
    parents = [group.group_id for group in groups if group.settings.mode is GroupMode.BROADCASTING]
    members |= dict(session.fetch_in("SELECT group_id, parent_id FROM consumer_group WHERE parent_id", parents))
    reached = session.fetch_in(
        "SELECT group_id, queue_id, next_offset FROM group_progress WHERE group_id", sorted(members)
    )
    if topic is not None:
        reached = [row for row in reached if row[1] in set(topic.queue_ids)]
    states = _states(session, reached, _open_offsets(session, sorted(members)))
    read: dict[tuple[int, str], list[tuple[int, QueueState]]] = defaultdict(list)
    for member, state in states:
        read[members[member], state.topic].append((member, state))
    found = []
    for group in groups:
        topics = sorted(name for group_id, name in read if group_id == group.group_id)
        found += [_entry(group, name, read[group.group_id, name]) for name in topics]
        if not topics and topic is None:
            found.append(GroupLag(group, ""))
    kept = _dead_letters(session, groups)
    for each in found:
        each.dead_letters = kept[dead_letter_topic(each.group.name)]
    return found, len(states)


def _dead_letters(session: Session, groups: Sequence[ConsumerGroup]) -> Counter[str]:
    """How many dead letters are kept, by the name of their topic."""
    kept: Counter[str] = Counter()
    query = (
        f"SELECT own.name, q.next_offset - q.min_offset - {gaps_since(session, 'q.min_offset')}"
        f" FROM topic own {session.dialect.joined_to} queue q ON q.topic_id = own.topic_id"
        " WHERE own.deleted_at IS NULL AND q.deleted_at IS NULL AND own.name"
    )
    for name, count in session.fetch_in(query, [dead_letter_topic(group.name) for group in groups]):
        kept[name] += int(count)
    return kept


def _entry(group: ConsumerGroup, topic: str, read: Sequence[tuple[int, QueueState]]) -> GroupLag:
    states = [state for _, state in read]
    waiting = [state.waiting_since for state in states if state.lag and state.waiting_since is not None]
    broadcasts = group.settings.mode is GroupMode.BROADCASTING
    return GroupLag(
        group,
        topic,
        queues=len({state.queue_no for state in states}),
        lag=sum(state.lag for state in states),
        waiting_since=min(waiting, default=None),
        in_flight=sum(state.in_flight for state in states),
        members=len({member for member, _ in read}) if broadcasts else 0,
    )


def _open_offsets(session: Session, members: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """The offsets that are delivered and not handled, by member and queue."""
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    query = f"SELECT {rows.LEASE_COLUMNS} FROM lease{session.dialect.by_index('lease_queue')} WHERE group_id"
    for row in session.fetch_in(query, members):
        lease = rows.lease_from_row(row)
        found[lease.group_id, lease.queue_id] += lease.open_offsets()
    return found


def _states(
    session: Session, reached: Sequence[tuple[int, int, int]], open_offsets: dict[tuple[int, int], list[int]]
) -> list[tuple[int, QueueState]]:
    ends = {
        row[0]: row[1:]
        for row in session.fetch_in(
            "SELECT q.queue_id, q.min_offset, q.next_offset, q.queue_no, own.name"
            f" FROM queue q{session.dialect.by_key} {session.dialect.joined_to} topic own"
            " ON own.topic_id = q.topic_id WHERE q.deleted_at IS NULL AND q.queue_id",
            sorted({queue_id for _, queue_id, _ in reached}),
        )
    }
    gaps = gaps_of(session, ends)
    places: list[tuple[int, int, int, int]] = []
    for member, queue_id, following in reached:
        if queue_id in ends:
            first_open = min(open_offsets.get((member, queue_id), [following]))
            committed = max(min(following, first_open), ends[queue_id][0])
            places.append((member, queue_id, following, gaps.get(queue_id, NO_GAPS).resume(committed)))
    # Offsets are dense but for gaps, so the first message that is not handled is at the committed offset.
    waiting = session.fetch_each(
        "SELECT queue_id, log_offset, stored_at FROM message WHERE queue_id = ? AND log_offset = ?",
        sorted({(queue_id, committed) for _, queue_id, _, committed in places if committed < ends[queue_id][1]}),
    )
    since = {(queue_id, offset): stored_at for queue_id, offset, stored_at in waiting}
    states = []
    for member, queue_id, following, committed in places:
        low, high, queue_no, name = ends[queue_id]
        in_flight = len(open_offsets.get((member, queue_id), ()))
        first_waits = since.get((queue_id, committed))
        state = QueueState(
            name,
            queue_no,
            low,
            high,
            following,
            committed,
            in_flight,
            waiting_since=first_waits,
            gaps=gaps.get(queue_id, NO_GAPS),
        )
        states.append((member, state))
    return states
