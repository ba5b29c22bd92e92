"""Progress of groups in queues: joining, seeking, and reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.group import EARLIEST, LATEST, ConsumerGroup, GroupMode
from broker.domain.topic import QueueState, Topic
from broker.errors import NotFound, Refused
from broker.storage.catalog.topics import holding
from broker.storage.engine.statements import marks
from broker.storage.groups import groups
from broker.storage.log.offsets_by_time import offset_at
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session


_PROGRESS = "group_id, queue_id, next_offset"


def join(session: Session, group: ConsumerGroup, topics: Collection[Topic], start_at: int | None = None) -> set[int]:
    """Ensures that the group has a progress row for every queue of these topics.

    In a topic that the group never read it starts at `start_at`, or at the group's setting; in a queue added later, at
    the queue's beginning.

    Returns:
        Ids of the topics that the group did not read before.

    Raises:
        NotFound: the group or a topic has been deleted.
    """
    queue_ids = [queue_id for topic in topics for queue_id in topic.queue_ids]
    if not queue_ids:
        return set()
    known = _joined(session, group, queue_ids)
    if len(known) == len(queue_ids):
        return set()
    locking = session.dialect.for_update
    if not session.fetch("SELECT 1 FROM consumer_group WHERE group_id = ?" + locking, (group.group_id,)):
        raise NotFound(f"There is no consumer group {group.name!r}.", reason="GROUP_NOT_FOUND", field="consumer_group")
    topic_ids = {topic.topic_id for topic in topics}
    if len(session.execute_all([holding(session, topic_ids)])[0].rows) != len(topic_ids):
        raise NotFound("A topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topics")
    known = _joined(session, group, queue_ids)
    fresh = {topic.topic_id for topic in topics if not known & set(topic.queue_ids)}
    start = group.start_at if start_at is None else start_at
    new = [
        (group.group_id, queue_id, _start(session, queue_id, start) if topic.topic_id in fresh else 0)
        for topic in topics
        for queue_id in topic.queue_ids
        if queue_id not in known
    ]
    if new:
        session.insert("group_progress", _PROGRESS, sorted(new), keep_existing="group_id")
    return fresh


def _joined(session: Session, group: ConsumerGroup, queue_ids: Sequence[int]) -> set[int]:
    found = session.fetch(
        f"SELECT queue_id FROM group_progress WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
        (group.group_id, *queue_ids),
    )
    return {row[0] for row in found}


def _start(session: Session, queue_id: int, start: int) -> int:
    if start == EARLIEST:
        return 0
    low, high = session.fetch("SELECT min_offset, next_offset FROM queue WHERE queue_id = ?", (queue_id,))[0]
    return int(high) if start == LATEST else offset_at(session, queue_id, start, low, high)


def seek(
    session: Session,
    group: ConsumerGroup,
    queue_ids: Sequence[int],
    *,
    to: int | None = None,
    offset: int | None = None,
) -> None:
    """Moves a group, and all its members, to another position in some queues, and deletes its leases there.

    Args:
        session: a transaction.
        group: the group.
        queue_ids: the queues.
        to: EARLIEST, LATEST, or a time.
        offset: an offset, instead of `to`.

    Raises:
        NotFound: the group or the topic was deleted, or has left this cell.
        Refused: the group never read the topic.
    """
    # First the groups: deriving a lease from another one locks the group, and a new member locks the parent.
    if not groups.lock(session, [group.group_id]):
        raise groups.gone(group.name)
    members = groups.members(session, group) or [group]
    groups.lock(session, [member.group_id for member in members])
    for queue_id in sorted(queue_ids):
        row = session.fetch_one(
            "SELECT min_offset, next_offset, topic_id FROM queue WHERE queue_id = ? AND deleted_at IS NULL", (queue_id,)
        )
        if row is None:
            raise NotFound("The topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topic")
        target = _start(session, queue_id, to) if offset is None and to is not None else min(offset or 0, row[1])
        target = max(target, row[0])
        for member in members:
            # First the progress: a claim locks it while it adds leases.
            locked = session.fetch(
                "SELECT 1 FROM group_progress WHERE group_id = ? AND queue_id = ?" + session.dialect.for_update,
                (member.group_id, queue_id),
            )
            if not locked and not _reads_topic_of(session, member, queue_id):
                raise Refused(
                    f"The group {group.name!r} never read this topic; it has no place there yet.",
                    reason="NOT_SUBSCRIBED",
                    field="topic",
                )
            if locked:
                session.run(
                    "UPDATE group_progress SET next_offset = ? WHERE group_id = ? AND queue_id = ?",
                    (target, member.group_id, queue_id),
                )
            else:
                # The topic got this queue later, and no consumer has joined since: see join. Both lock group and topic.
                if not session.execute_all([holding(session, [row[2]])])[0].rows:
                    raise NotFound("The topic was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="topic")
                session.insert("group_progress", _PROGRESS, [(member.group_id, queue_id, target)])
            session.run("DELETE FROM lease WHERE group_id = ? AND queue_id = ?", (member.group_id, queue_id))
    groups.touch(session, group)


def _reads_topic_of(session: Session, group: ConsumerGroup, queue_id: int) -> bool:
    return bool(
        session.fetch(
            "SELECT 1 FROM queue own JOIN queue other ON other.topic_id = own.topic_id"
            " JOIN group_progress p ON p.group_id = ? AND p.queue_id = other.queue_id WHERE own.queue_id = ? LIMIT 1",
            (group.group_id, queue_id),
        )
    )


def commit(session: Session, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
    """Records the progress of a group that reads by offset.

    Args:
        session: a transaction.
        group: the group.
        topic: the topic.
        offsets: by queue id, the offset below which all messages are handled; at most the end of the queue.

    Raises:
        NotFound: the group or the topic was deleted.
        Refused: the group is broadcasting, or reads under leases.
    """
    if group.settings.mode is GroupMode.BROADCASTING:
        raise Refused(
            f"The members of the broadcasting group {group.name!r} have a place each; read by offset as another group.",
            reason="GROUP_BROADCASTING",
            field="consumer_group",
        )
    join(session, group, [topic])
    for queue_id in sorted(offsets):
        # First the progress: a claim locks it while it adds leases.
        locked = session.fetch(
            "SELECT 1 FROM group_progress WHERE group_id = ? AND queue_id = ?" + session.dialect.for_update,
            (group.group_id, queue_id),
        )
        if not locked:
            raise NotFound(
                f"The group {group.name!r}, or the topic, was deleted a moment ago.",
                reason="GROUP_NOT_FOUND",
                field="consumer_group",
            )
        leased = session.fetch_one(
            "SELECT 1 FROM lease WHERE group_id = ? AND queue_id = ? LIMIT 1", (group.group_id, queue_id)
        )
        if leased:
            raise Refused(
                f"The group {group.name!r} has leases in this queue: its progress is what its consumers acknowledge.",
                reason="GROUP_HAS_LEASES",
                field="consumer_group",
            )
        session.run(
            "UPDATE group_progress SET next_offset = (SELECT CASE WHEN q.next_offset < ? THEN q.next_offset ELSE ? END"
            " FROM queue q WHERE q.queue_id = ?) WHERE group_id = ? AND queue_id = ?",
            (offsets[queue_id], offsets[queue_id], queue_id, group.group_id, queue_id),
        )


def progress_in(session: Session, queue_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Group and queue of all progress in some queues: of each group by primary key, not through that of all queues."""
    groups_known = [row[0] for row in session.fetch("SELECT group_id FROM consumer_group")]
    numbers = ", ".join(str(int(each)) for each in queue_ids)
    query = f"SELECT group_id, queue_id FROM group_progress{session.dialect.by_key} WHERE queue_id IN ({numbers})"
    return sorted((row[0], row[1]) for row in session.fetch_in(f"{query} AND group_id", sorted(groups_known)))


def first_unread(session: Session, queue_id: int) -> int | None:
    """The first unhandled offset of groups with `keep_unread`; None if there is no such group.

    Uses group_keeping and group_members, then reads a row of group_progress and an entry of lease_queue for each.
    """
    keeping = [row[0] for row in session.fetch("SELECT group_id FROM consumer_group WHERE keep_unread = 1")]
    if not keeping:
        return None
    keeping += [row[0] for row in session.fetch_in("SELECT group_id FROM consumer_group WHERE parent_id", keeping)]
    reached = session.fetch(
        f"SELECT next_offset FROM group_progress WHERE queue_id = ? AND group_id IN ({marks(keeping)})",
        (queue_id, *keeping),
    )
    leased = session.fetch_each(
        "SELECT MIN(first_offset) FROM lease WHERE group_id = ? AND queue_id = ?", [(i, queue_id) for i in keeping]
    )
    offsets = [row[0] for row in [*reached, *leased] if row[0] is not None]
    return min(offsets, default=None)


def group_states(session: Session, group: ConsumerGroup, directory: Directory) -> list[QueueState]:
    """Progress of a group in every queue it joined; of a broadcasting group, that of each member."""
    return [
        state for member in groups.members(session, group) or [group] for state in _states(session, member, directory)
    ]


def _states(session: Session, group: ConsumerGroup, directory: Directory) -> list[QueueState]:
    joined = session.fetch(
        "SELECT queue_id FROM group_progress WHERE group_id = ? ORDER BY queue_id", (group.group_id,)
    )
    return _describe(session, group, [row[0] for row in joined], directory)


def topic_states(session: Session, topic: Topic, group: ConsumerGroup | None, directory: Directory) -> list[QueueState]:
    """First and last offsets of a topic's queues, and a group's progress; empty if the topic was deleted."""
    return _describe(session, group, topic.queue_ids, directory)


def _describe(
    session: Session, group: ConsumerGroup | None, queue_ids: Sequence[int], directory: Directory
) -> list[QueueState]:
    if not queue_ids:
        return []
    found = session.fetch(
        "SELECT queue_id, min_offset, next_offset, priority, stored_bytes FROM queue"
        f" WHERE deleted_at IS NULL AND queue_id IN ({marks(queue_ids)})",
        queue_ids,
    )
    places = {row[0]: directory.of_queue(session, row[0]) for row in found}
    progress: dict[int, tuple[int, int, int]] = {}
    if group and found:
        progress = _marks(session, group, [row[0] for row in found])
        # If the topic leaves for another cell meanwhile, so does its groups' progress: nothing is known of it then.
        there = _existing(session, [row[0] for row in found])
        found = [row for row in found if row[0] in there]
    states = []
    for queue_id, low, high, priority, stored_bytes in found:
        place = places[queue_id]
        if place is None:
            continue
        following, committed, in_flight = progress.get(queue_id, (low, low, 0))
        gaps = place[0].gaps_of(queue_id)
        committed = gaps.resume(max(committed, low))
        since = None
        if group is not None and committed < high:
            since = session.fetch_one(
                "SELECT stored_at FROM message WHERE queue_id = ? AND log_offset >= ? ORDER BY log_offset LIMIT 1",
                (queue_id, committed),
            )
        states.append(
            QueueState(
                place[0].name,
                place[1],
                low,
                high,
                following,
                committed,
                in_flight,
                priority,
                stored_bytes,
                since[0] if since else None,
                group.client_id if group else "",
                place[0].identity,
                gaps,
            )
        )
    return sorted(states, key=lambda state: (state.topic, state.queue_no))


def _existing(session: Session, queue_ids: Sequence[int]) -> set[int]:
    query = f"SELECT queue_id FROM queue WHERE deleted_at IS NULL AND queue_id IN ({marks(queue_ids)})"
    return {row[0] for row in session.fetch(query, queue_ids)}


def _marks(session: Session, group: ConsumerGroup, queue_ids: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Per queue a group joined: the next offset to deliver, the first unhandled one, and the number in flight."""
    marks_of = {
        row[0]: (row[1], row[1], 0)
        for row in session.fetch(
            f"SELECT queue_id, next_offset FROM group_progress WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
            (group.group_id, *queue_ids),
        )
    }
    # Uses lease_queue. Leases are few: one per batch in flight, one per message waiting for a retry.
    for row in session.fetch(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE group_id = ? AND queue_id IN ({marks(queue_ids)})",
        (group.group_id, *queue_ids),
    ):
        lease = rows.lease_from_row(row)
        if lease.queue_id not in marks_of:
            continue  # The group is being deleted.
        open_offsets = lease.open_offsets()
        following, committed, in_flight = marks_of[lease.queue_id]
        marks_of[lease.queue_id] = (following, min([committed, *open_offsets]), in_flight + len(open_offsets))
    return marks_of
