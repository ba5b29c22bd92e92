"""Consumer groups: creating, changing, listing, deleting; and a memory of them that notices every change."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.domain.filters import FilterKind, compile_filter
from broker.domain.group import ConsumerGroup, ExhaustedPolicy, GroupMode, GroupSettings
from broker.domain.retry import dead_letter_topic
from broker.errors import AlreadyExists, NotFound, Refused
from broker.storage.catalog.topics import create_topic, holding
from broker.storage.delivery.leases import drop_of_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.filters import Filter
    from broker.domain.topic import Topic, TopicSettings
    from broker.storage.engine.session import Session

# A member of a broadcasting group (m) has the settings of its group (g); any other group is its own.
SELECT_GROUP = (
    "SELECT m.group_id, g.name, m.created_at, g.max_attempts, g.retry_delays, g.when_exhausted, g.mode, g.start_at,"
    " g.keep_unread, g.fifo, g.epoch, g.paused_at, g.pause_reason, m.parent_id, m.name"
    " FROM consumer_group m JOIN consumer_group g ON g.group_id = COALESCE(m.parent_id, m.group_id)"
)
_INSERT_COLUMNS = "name, max_attempts, created_at, retry_delays, when_exhausted, mode, start_at, keep_unread, fifo"
_FILTERS = "SELECT topic_id, kind, expression FROM group_filter WHERE group_id = ?"
SEEN_EVERY = 3600 * 1_000_000
MOST_REMEMBERED = 10_000


def from_row(row: Sequence[Any]) -> ConsumerGroup:
    """A group from a row of SELECT_GROUP."""
    group_id, name, created, attempts, delays, exhausted, mode, start, keep_unread, fifo, *rest = row
    epoch, paused, reason, parent_id, own_name = rest
    settings = GroupSettings(
        attempts,
        tuple(json.loads(delays)) if delays else (),
        ExhaustedPolicy(exhausted),
        GroupMode(mode),
        start,
        bool(keep_unread),
        bool(fifo),
    )
    client_id = own_name[len(name) + 1 :] if parent_id else ""
    return ConsumerGroup(group_id, name, created, settings, epoch, paused, reason, parent_id, client_id)


def find_group(session: Session, name: str) -> ConsumerGroup | None:
    """A consumer group by name."""
    row = session.fetch_one(f"{SELECT_GROUP} WHERE m.name = ?", (name,))
    return from_row(row) if row else None


def has_group(session: Session, group: ConsumerGroup) -> bool:
    """Whether this very group exists, not another one of its name.

    Waits for whoever makes or deletes it at this time: that may be a COMMIT which got no answer and is still to come.
    """
    return bool(lock(session, [group.group_id]))


def lock(session: Session, group_ids: Sequence[int]) -> set[int]:
    """Locks groups, which get no leases made from others until the transaction ends; those that exist."""
    found = session.fetch_in(
        f"SELECT group_id FROM consumer_group{session.dialect.by_key} WHERE group_id",
        sorted(group_ids),
        " ORDER BY group_id" + session.dialect.for_update,
    )
    return {row[0] for row in found}


def list_groups(session: Session, after: str, limit: int) -> list[ConsumerGroup]:
    """Consumer groups by name, from behind `after` on; members of broadcasting groups are not among them."""
    found = session.fetch(
        f"{SELECT_GROUP} WHERE m.name > ? AND m.parent_id IS NULL ORDER BY m.name LIMIT ?", (after, limit)
    )
    return [from_row(row) for row in found]


def members(session: Session, group: ConsumerGroup) -> list[ConsumerGroup]:
    """The members of a broadcasting group. Uses group_members."""
    return [from_row(row) for row in session.fetch(f"{SELECT_GROUP} WHERE m.parent_id = ?", (group.group_id,))]


def create_group(
    session: Session,
    name: str,
    settings: GroupSettings,
    dead_letters: TopicSettings,
    now: int,
    most: int | None = None,
) -> ConsumerGroup:
    """Creates a consumer group, and its dead letter topic.

    Raises:
        AlreadyExists: the name is taken.
        Refused: there are `most` groups already.
    """
    if most is not None:
        count = session.fetch("SELECT COUNT(*) FROM consumer_group WHERE parent_id IS NULL")[0][0]
        if count >= most:
            raise Refused(
                f"There are {count} consumer groups, and no more are made because somebody names one. A group is what"
                " consumers with the same code have in common; make it with AdminService.CreateGroup.",
                reason="TOO_MANY_GROUPS",
                field="consumer_group",
            )
    values = (
        name,
        settings.max_attempts,
        now,
        _encode_delays(settings.retry_delays),
        int(settings.when_exhausted),
        int(settings.mode),
        settings.start_at,
        int(settings.keep_unread),
        int(settings.fifo),
    )
    if not session.insert("consumer_group", _INSERT_COLUMNS, [values], keep_existing="name"):
        raise AlreadyExists(f"The group {name!r} exists already.", reason="GROUP_EXISTS", field="group.name")
    # Not as it is remembered: another broker may have deleted it.
    if not session.fetch("SELECT 1 FROM topic WHERE name = ?", (dead_letter_topic(name),)):
        with suppress(AlreadyExists):  # Somebody was faster.
            create_topic(session, dead_letter_topic(name), dead_letters, now)
    return _must_find(session, name)


def _encode_delays(delays: tuple[int, ...]) -> str | None:
    return json.dumps(delays) if delays else None


def _must_find(session: Session, name: str) -> ConsumerGroup:
    group = find_group(session, name)
    if group is None:
        raise _gone(name)
    return group


def _gone(name: str) -> NotFound:
    return NotFound(f"The group {name!r} was deleted.", reason="GROUP_NOT_FOUND", field="group")


def update_group(session: Session, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
    """Changes settings, by the names of GroupSettings.

    Raises:
        NotFound: it was deleted.
    """
    values = dict(changes)
    if "retry_delays" in values:
        values["retry_delays"] = _encode_delays(values["retry_delays"])
    return _change(session, group, values)


def pause_group(session: Session, group: ConsumerGroup, paused_at: int | None, reason: str | None) -> ConsumerGroup:
    """Stops handing out messages, or goes on (None as time); pausing again keeps the first time.

    Without a reason of its own it keeps the first reason, too.

    Raises:
        NotFound: it was deleted.
    """
    before = _must_find(session, group.name)
    if paused_at is not None and before.paused_at is not None:
        paused_at, reason = before.paused_at, reason or before.pause_reason
    return _change(session, group, {"paused_at": paused_at, "pause_reason": reason})


def set_filter(session: Session, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
    """Sets or takes away the group's filter of a topic.

    Raises:
        NotFound: the group or the topic was deleted.
    """
    changed = _change(session, group, {})
    if not session.execute_all([holding(session, [topic.topic_id])])[0].rows:
        raise NotFound(
            f"The topic {topic.name!r} was deleted a moment ago.", reason="TOPIC_NOT_FOUND", field="filter.topic"
        )
    session.run("DELETE FROM group_filter WHERE group_id = ? AND topic_id = ?", (group.group_id, topic.topic_id))
    if wanted is not None:
        values = (group.group_id, topic.topic_id, int(wanted.kind), wanted.expression)
        session.insert("group_filter", "group_id, topic_id, kind, expression", [values])
    return changed


def agree_on_filters(
    session: Session, group: ConsumerGroup, wanted: dict[Topic, Filter], *, replace_others: bool, fresh: set[int]
) -> None:
    """Gives a group the filters that a consumer names.

    Args:
        session: a transaction.
        group: the group (of a member, the one it belongs to).
        wanted: filter by topic.
        replace_others: also in the place of another filter.
        fresh: ids of the topics that the group did not read before: they may get a filter.

    Raises:
        Refused: the group has another filter, or wanted all messages so far.
    """
    known = {row[0]: (row[1], row[2]) for row in session.fetch(_FILTERS, (group.group_id,))}
    for topic, each in wanted.items():
        before = known.get(topic.topic_id)
        if before == (each.kind, each.expression):
            continue
        if not replace_others and (before is not None or topic.topic_id not in fresh):
            reads = f"reads {topic.name!r} with the filter {before[1]!r}" if before else f"wants all of {topic.name!r}"
            raise Refused(
                f"The group {group.name!r} {reads}; set replace_filters, or change it with SetFilter: a filter is the"
                " group's, what it passes over counts as handled.",
                reason="FILTER_CONFLICT",
                field="filters",
            )
        set_filter(session, group, topic, each)


def filters_of(session: Session, group: ConsumerGroup) -> dict[int, Filter]:
    """The filters of a group (of a member, of the group it belongs to) by topic id."""
    found = session.fetch(_FILTERS, (group.parent_id or group.group_id,))
    # Whatever they cost: it is looked at when they are named, and an older broker may have taken them.
    return {
        topic_id: compile_filter(FilterKind(kind), expression, max_cost=None) for topic_id, kind, expression in found
    }


def _change(session: Session, group: ConsumerGroup, values: dict[str, Any]) -> ConsumerGroup:
    names = "".join(f"{name} = ?, " for name in values)
    query = f"UPDATE consumer_group SET {names}epoch = epoch + 1 WHERE group_id = ?"
    if not session.run(query, (*values.values(), group.group_id)):
        # There may be another one of this name by now.
        raise _gone(group.name)
    return _must_find(session, group.name)


def touch(session: Session, group: ConsumerGroup) -> None:
    """Notes a change that consumers must see: brokers look at everything again."""
    session.run("UPDATE consumer_group SET epoch = epoch + 1 WHERE group_id = ?", (group.group_id,))


def join_as_member(session: Session, group: ConsumerGroup, client_id: str, now: int) -> ConsumerGroup:
    """The member of a broadcasting group that a consumer is; made when new.

    Raises:
        NotFound: the group was deleted.
    """
    locking = session.dialect.for_update
    if not session.fetch("SELECT 1 FROM consumer_group WHERE group_id = ?" + locking, (group.group_id,)):
        raise NotFound(f"There is no consumer group {group.name!r}.", reason="GROUP_NOT_FOUND", field="consumer_group")
    name = f"{group.name}/{client_id}"
    session.insert(
        "consumer_group",
        "name, max_attempts, created_at, parent_id, seen_at",
        [(name, group.settings.max_attempts, now, group.group_id, now)],
        keep_existing="name",
    )
    session.run("UPDATE consumer_group SET seen_at = ? WHERE name = ?", (now, name))
    return replace(_must_find(session, name), client_id=client_id)


def delete_group(session: Session, group: ConsumerGroup) -> None:
    """Deletes a consumer group with its members, progress and leases; its dead letter topic stays."""
    # First the group: who joins it holds it.
    lock(session, [group.group_id])
    for member in members(session, group):
        _delete(session, member.group_id)
    session.run("DELETE FROM group_filter WHERE group_id = ?", (group.group_id,))
    _delete(session, group.group_id)


def _delete(session: Session, group_id: int) -> None:
    # First the group: who makes a lease from another one holds it. Then the progress: a pull holds it while it adds its
    # lease.
    lock(session, [group_id])
    session.run("DELETE FROM group_progress WHERE group_id = ?", (group_id,))
    session.run("DELETE FROM lease WHERE group_id = ?", (group_id,))
    session.run("DELETE FROM consumer_group WHERE group_id = ?", (group_id,))


def forget_members(session: Session, before: int, limit: int) -> int:
    """Deletes some members of broadcasting groups that were not here since a time; how many."""
    found = session.fetch(
        "SELECT group_id FROM consumer_group WHERE parent_id IS NOT NULL AND seen_at < ? ORDER BY group_id LIMIT ?",
        (before, limit),
    )
    for (group_id,) in found:
        _delete(session, group_id)
    return len(found)


def drop_orphans(session: Session) -> int:
    """Deletes leases whose group is gone; how many. Brokers of earlier versions left some.

    Reads the first entry of each group in an index of the leases.
    """
    leased = {row[0] for row in session.fetch("SELECT DISTINCT group_id FROM lease")}
    known = session.fetch_in("SELECT group_id FROM consumer_group WHERE group_id", sorted(leased))
    # A number is never given to another group: whoever is gone stays so.
    return drop_of_groups(session, leased - {row[0] for row in known})


def epochs(session: Session, group_ids: Sequence[int]) -> dict[int, tuple[int, bool]]:
    """Epoch of groups and members, and whether they are paused; those that were deleted are left out."""
    found = session.fetch_in(
        "SELECT c.group_id, g.epoch, g.paused_at IS NOT NULL FROM consumer_group c"
        " JOIN consumer_group g ON g.group_id = COALESCE(c.parent_id, c.group_id) WHERE c.group_id",
        group_ids,
    )
    return {group_id: (epoch, bool(paused)) for group_id, epoch, paused in found}
