"""Consumer groups: creating, changing, listing, deleting; and their epochs."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from broker.domain.cell import Name, Placed
from broker.domain.dead_letter import dead_letter_topic
from broker.domain.group import ConsumerGroup, ExhaustedPolicy, GroupMode, GroupSettings
from broker.errors import AlreadyExists, NotFound, Refused
from broker.storage.catalog.moves import refuse_what_left
from broker.storage.catalog.quotas import check_room
from broker.storage.catalog.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.topic import TopicSettings
    from broker.storage.engine.session import Session

# A member of a broadcasting group (m) has the settings of its group (g); for any other group both are the same.
_SELECT = (
    "SELECT m.group_id, g.name, m.created_at, g.max_attempts, g.retry_delays, g.when_exhausted, g.mode, g.start_at,"
    " g.keep_unread, g.fifo, g.epoch, g.paused_at, g.pause_reason, m.parent_id, m.name"
    " FROM consumer_group m{index} JOIN consumer_group g ON g.group_id = COALESCE(m.parent_id, m.group_id)"
)
SELECT_GROUP = _SELECT.format(index="")
_INSERT_COLUMNS = "name, max_attempts, created_at, retry_delays, when_exhausted, mode, start_at, keep_unread, fifo"
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


def names(session: Session) -> dict[int, str]:
    """The names of all consumer groups by their numbers; a member of a broadcasting group has the name of its group."""
    return dict(
        session.fetch(
            "SELECT own.group_id, COALESCE(whole.name, own.name) FROM consumer_group own"
            " LEFT JOIN consumer_group whole ON whole.group_id = own.parent_id"
        )
    )


def find_group(session: Session, name: str) -> ConsumerGroup | None:
    """A consumer group by name."""
    row = session.fetch_one(f"{SELECT_GROUP} WHERE m.name = ?", (name,))
    return from_row(row) if row else None


def has_group(session: Session, group: ConsumerGroup) -> bool:
    """Whether this group exists, not another one of its name.

    Waits for a concurrent creation or deletion: it may be a COMMIT without an answer that has not taken effect yet.
    """
    return bool(lock(session, [group.group_id]))


def lock(session: Session, group_ids: Sequence[int]) -> set[int]:
    """Locks groups, so that no leases are derived for them until the transaction ends; returns the existing ones."""
    found = session.fetch_in(
        f"SELECT group_id FROM consumer_group{session.dialect.by_key} WHERE group_id",
        sorted(group_ids),
        " ORDER BY group_id" + session.dialect.for_update,
    )
    return {row[0] for row in found}


def list_groups(session: Session, after: str, limit: int) -> list[ConsumerGroup]:
    """Consumer groups by name, after `after`, without members of broadcasting groups."""
    # As in list_topics.
    select = _SELECT.format(index=session.dialect.by_index("consumer_group_name"))
    found = session.fetch(f"{select} WHERE m.name > ? AND m.parent_id IS NULL ORDER BY m.name LIMIT ?", (after, limit))
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
        Moved: it was moved to another cell.
        Refused: there are `most` groups already.
        Overloaded: its tenant has as many as it may have.
    """
    if most is not None:
        count = session.fetch("SELECT COUNT(*) FROM consumer_group WHERE parent_id IS NULL")[0][0]
        if count >= most:
            raise Refused(
                f"There are {count} consumer groups, and no more are created automatically. A group is what"
                " consumers with the same code have in common; create it with"
                f" `halfmq admin group create {quote(name)}`.",
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
    refuse_what_left(session, Name(Placed.GROUP, name))
    check_room(session, name, is_group=True)
    # Not from the cache: another broker may have deleted it. With a lock, as retention may be about to delete it; the
    # lock has to be that of the row: a query that the index answers would lock the index entry alone.
    query = "SELECT created_at FROM topic WHERE name = ?" + session.dialect.for_share
    if not session.fetch(query, (dead_letter_topic(name),)):
        with suppress(AlreadyExists):  # Created concurrently.
            create_topic(session, dead_letter_topic(name), dead_letters, now)
    return _must_find(session, name)


def _encode_delays(delays: tuple[int, ...]) -> str | None:
    return json.dumps(delays) if delays else None


def _must_find(session: Session, name: str) -> ConsumerGroup:
    group = find_group(session, name)
    if group is None:
        raise gone(name)
    return group


def gone(name: str) -> NotFound:
    """The error of a call for a group that is not there any more."""
    return NotFound(f"The group {name!r} was deleted.", reason="GROUP_NOT_FOUND", field="group")


def update_group(session: Session, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
    """Changes settings, by the names of GroupSettings.

    Raises:
        NotFound: it was deleted.
    """
    values = dict(changes)
    if "retry_delays" in values:
        values["retry_delays"] = _encode_delays(values["retry_delays"])
    return change(session, group, values)


def pause_group(session: Session, group: ConsumerGroup, paused_at: int | None, reason: str | None) -> ConsumerGroup:
    """Pauses or resumes (None as time) delivery; pausing again keeps the first time.

    Without a new reason it keeps the first reason, too.

    Raises:
        NotFound: it was deleted.
    """
    before = _must_find(session, group.name)
    if paused_at is not None and before.paused_at is not None:
        paused_at, reason = before.paused_at, reason or before.pause_reason
    return change(session, group, {"paused_at": paused_at, "pause_reason": reason})


def change(session: Session, group: ConsumerGroup, values: dict[str, Any]) -> ConsumerGroup:
    """Changes columns of a group and increments its epoch; returns its new state.

    Raises:
        NotFound: the group was deleted.
    """
    names = "".join(f"{name} = ?, " for name in values)
    query = f"UPDATE consumer_group SET {names}epoch = epoch + 1 WHERE group_id = ?"
    if not session.run(query, (*values.values(), group.group_id)):
        # There may be another one of this name by now.
        raise gone(group.name)
    return _must_find(session, group.name)


def touch(session: Session, group: ConsumerGroup) -> None:
    """Increments the epoch: brokers reload the group."""
    session.run("UPDATE consumer_group SET epoch = epoch + 1 WHERE group_id = ?", (group.group_id,))


def join_as_member(session: Session, group: ConsumerGroup, client_id: str, now: int) -> ConsumerGroup:
    """A consumer's member of a broadcasting group; created if new.

    Raises:
        NotFound: the group was deleted.
        Overloaded: its tenant has as many groups and members as it may have.
    """
    locking = session.dialect.for_update
    if not session.fetch("SELECT 1 FROM consumer_group WHERE group_id = ?" + locking, (group.group_id,)):
        raise NotFound(f"There is no consumer group {group.name!r}.", reason="GROUP_NOT_FOUND", field="consumer_group")
    name = f"{group.name}/{client_id}"
    columns = "name, max_attempts, created_at, parent_id, seen_at"
    values = (name, group.settings.max_attempts, now, group.group_id, now)
    if session.insert("consumer_group", columns, [values], keep_existing="name"):
        check_room(session, name, is_group=True)
    session.run("UPDATE consumer_group SET seen_at = ? WHERE name = ?", (now, name))
    return replace(_must_find(session, name), client_id=client_id)


def delete_group(session: Session, group: ConsumerGroup) -> None:
    """Deletes a consumer group with its members, progress and leases; retention deletes its dead letter topic.

    Raises:
        NotFound: it was deleted already, or has left this cell.
    """
    # First the group: joining locks it.
    if not lock(session, [group.group_id]):
        raise gone(group.name)
    for member in members(session, group):
        _delete(session, member.group_id)
    session.run("DELETE FROM group_filter WHERE group_id = ?", (group.group_id,))
    _delete(session, group.group_id)


def delete_again(session: Session, group: ConsumerGroup) -> None:
    """Deletes a group after a COMMIT without an answer, which may have deleted it.

    Raises:
        Moved: it was not deleted, and has left this cell.
    """
    if has_group(session, group):
        delete_group(session, group)
    else:
        refuse_what_left(session, Name(Placed.GROUP, group.name))


def _delete(session: Session, group_id: int) -> None:
    # First the group: deriving a lease from another one locks it. Then the progress: a pull locks it while it adds its
    # lease.
    lock(session, [group_id])
    session.run("DELETE FROM group_progress WHERE group_id = ?", (group_id,))
    session.run("DELETE FROM lease WHERE group_id = ?", (group_id,))
    session.run("DELETE FROM consumer_group WHERE group_id = ?", (group_id,))


def forget_members(session: Session, before: int, limit: int) -> int:
    """Deletes some members of broadcasting groups not seen since a time; returns how many."""
    found = session.fetch(
        "SELECT group_id FROM consumer_group WHERE parent_id IS NOT NULL AND seen_at < ? ORDER BY group_id LIMIT ?",
        (before, limit),
    )
    for (group_id,) in found:
        _delete(session, group_id)
    return len(found)


def epochs(session: Session, group_ids: Sequence[int]) -> dict[int, tuple[int, bool]]:
    """Epoch of groups and members, and whether they are paused; deleted ones are omitted."""
    found = session.fetch_in(
        "SELECT c.group_id, g.epoch, g.paused_at IS NOT NULL FROM consumer_group c"
        " JOIN consumer_group g ON g.group_id = COALESCE(c.parent_id, c.group_id) WHERE c.group_id",
        group_ids,
    )
    return {group_id: (epoch, bool(paused)) for group_id, epoch, paused in found}
