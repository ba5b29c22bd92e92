"""Deletes topics: a short transaction hides the topic, then its messages are deleted in batches, crash-safe.

A deleted topic's row stays until all of its data is deleted, under a name that no client can use; `deleted_at` is set
in it and in the rows of its queues, so that look-ups do not find it, and no more offsets are assigned in it. A topic
that is moving to another cell is hidden in the same way, but under another name, and is not touched here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.errors import NotFound, Refused
from broker.storage.catalog.directory import read_by_name
from broker.storage.catalog.gaps import gaps_since
from broker.storage.delivery.leases import drop_of_groups
from broker.storage.engine.statements import marks
from broker.storage.engine.transaction_runner import TransactionRunner
from broker.storage.groups.progress import progress_in
from broker.storage.retention.trimming import CHUNK, drop_oldest, oldest_messages

if TYPE_CHECKING:
    from broker.domain.topic import Topic
    from broker.storage.engine.connection import Database
    from broker.storage.engine.session import Session

_BEHIND_DEAD_LETTERS = DEAD_LETTER_PREFIX[:-1] + chr(ord(DEAD_LETTER_PREFIX[-1]) + 1)
RECONNECT_TIMEOUT = 10.0
"""Seconds to retry the database, when not run by a broker."""
DELETED = "deleted_at IS NOT NULL AND name LIKE '~%'"
"""Condition on the table topic: it is deleted; otherwise one with `deleted_at` is moving to another cell."""


def delete_topic(session: Session, topic: Topic, now: int) -> None:
    """Hides a topic; its name is free at once. `sweep` deletes its data.

    Raises:
        NotFound: it was deleted already.
        Refused: half messages, scheduled messages or leases refer to it.
    """
    locked = session.fetch(
        "SELECT topic_id FROM topic WHERE topic_id = ? AND deleted_at IS NULL" + session.dialect.for_update,
        (topic.topic_id,),
    )
    if not locked:
        raise NotFound(f"There is no topic {topic.name!r}.", reason="TOPIC_NOT_FOUND", field="topic")
    # Reads the half messages, which are few, and the scheduled ones.
    if session.fetch("SELECT 1 FROM half_message WHERE topic_id = ? LIMIT 1", (topic.topic_id,)):
        raise _in_use(
            f"Transactions without a verdict have messages for {topic.name!r}; resolve them first (ListTransactions)."
        )
    if session.fetch("SELECT 1 FROM scheduled_message WHERE topic_id = ? LIMIT 1", (topic.topic_id,)):
        raise _in_use(f"Messages for {topic.name!r} wait for their time; let it come, or recall them, first.")
    queues = [row[0] for row in session.fetch("SELECT queue_id FROM queue WHERE topic_id = ?", (topic.topic_id,))]
    # First the progress: a pull locks it, and without it no more messages are delivered. Whoever adds some locks the
    # topic.
    progress = progress_in(session, queues)
    session.execute_all(session.deletion_of("group_progress", "group_id, queue_id", progress))
    # Orphaned leases of deleted groups: a broker of an earlier version left them.
    found = session.fetch(f"SELECT DISTINCT group_id FROM lease WHERE queue_id IN ({marks(queues)})", queues)
    leased = {row[0] for row in found}
    if leased and session.fetch_in("SELECT group_id FROM consumer_group WHERE group_id", sorted(leased)):
        raise _in_use(
            f"Messages of {topic.name!r} were handed out, or given back, and are not handled yet;"
            " handle them, or delete their groups, first."
        )
    drop_of_groups(session, leased)
    # Waits for transactions that are appending to its queues.
    session.run("UPDATE queue SET deleted_at = ? WHERE topic_id = ?", (now, topic.topic_id))
    session.run(
        "UPDATE topic SET deleted_at = ?, name = ? WHERE topic_id = ?", (now, f"~{topic.topic_id}", topic.topic_id)
    )


def _in_use(text: str) -> Refused:
    return Refused(text, reason="TOPIC_IN_USE", field="topic")


def _empty(session: Session) -> str:
    """Condition on a topic `own`: no queue has a message."""
    return (
        "NOT EXISTS (SELECT 1 FROM queue q WHERE q.topic_id = own.topic_id"
        f" AND q.next_offset - q.min_offset > {gaps_since(session, 'q.min_offset')})"
    )


def orphaned_dead_letters(session: Session, now: int, limit: int, after: int = 0) -> list[int]:
    """Empty dead letter topics, from an id on, whose group was deleted, and which are older than their retention.

    Uses topic_name, consumer_group_name and queue_of_topic.
    """
    found = session.fetch(
        "SELECT own.topic_id FROM topic own WHERE own.name >= ? AND own.name < ? AND own.topic_id > ?"
        f" AND own.deleted_at IS NULL AND own.created_at + own.retention <= ? AND {_empty(session)}"
        " AND NOT EXISTS (SELECT 1 FROM consumer_group g WHERE g.name = SUBSTR(own.name, ?))"
        " ORDER BY own.topic_id LIMIT ?",
        (DEAD_LETTER_PREFIX, _BEHIND_DEAD_LETTERS, after, now, len(DEAD_LETTER_PREFIX) + 1, limit),
    )
    return [row[0] for row in found]


def delete_orphaned(session: Session, topic_id: int, now: int) -> None:
    """Deletes one of these, unless there is a group of its name by now, a dead letter in it, or somebody who reads it.

    Whoever creates the group locks the topic as well.
    """
    locked = session.fetch_one(
        "SELECT own.name FROM topic own WHERE own.topic_id = ? AND own.deleted_at IS NULL" + session.dialect.for_update,
        (topic_id,),
    )
    topic = read_by_name(session, locked[0]) if locked is not None else None
    if topic is None:
        return
    group = topic.name.removeprefix(DEAD_LETTER_PREFIX)
    if (
        session.fetch_one("SELECT 1 FROM consumer_group WHERE name = ?", (group,))
        or not session.fetch_one(f"SELECT 1 FROM topic own WHERE own.topic_id = ? AND {_empty(session)}", (topic_id,))
        or progress_in(session, topic.queue_ids)
    ):
        return
    with suppress(Refused):  # Half messages or scheduled ones are for it.
        delete_topic(session, topic, now)


def deleted_topics(session: Session, limit: int, after: int = 0) -> list[int]:
    """Deleted topics with remaining data, from an id on; not those that are moving. Reads the small table `topic`."""
    return [
        row[0]
        for row in session.fetch(
            f"SELECT topic_id FROM topic WHERE topic_id > ? AND {DELETED} ORDER BY topic_id LIMIT ?",
            (after, limit),
        )
    ]


def sweep(session: Session, topic_id: int) -> bool:
    """Deletes a part of a deleted topic's data; returns whether any is left.

    The topic's row is locked: one that has moved to another cell may come back under its number once all is deleted.
    """
    locked = f"SELECT 1 FROM topic WHERE topic_id = ? AND {DELETED}{session.dialect.for_update}"
    if not session.fetch(locked, (topic_id,)):
        return False
    queue = session.fetch_one(
        "SELECT queue_id, min_offset FROM queue WHERE topic_id = ? ORDER BY queue_no LIMIT 1", (topic_id,)
    )
    if queue is not None:
        queue_id, first = queue
        head = oldest_messages(session, queue_id, first, CHUNK)
        if head:
            drop_oldest(session, topic_id, queue_id, first, head, deleted=True)
            return True
        session.run("DELETE FROM offset_gap WHERE queue_id = ?", (queue_id,))
        session.run("DELETE FROM queue WHERE queue_id = ?", (queue_id,))
        return True
    # Range of the primary key.
    hashes = [
        (topic_id, row[0])
        for row in session.fetch("SELECT dedup_hash FROM dedup_key WHERE topic_id = ? LIMIT ?", (topic_id, CHUNK))
    ]
    if hashes:
        session.execute_all(session.deletion_of("dedup_key", "topic_id, dedup_hash", hashes))
        return True
    # Few: groups that set a filter on it.
    session.run("DELETE FROM group_filter WHERE topic_id = ?", (topic_id,))
    session.run("DELETE FROM topic WHERE topic_id = ?", (topic_id,))
    return False


def sweep_all(database: Database) -> None:
    """Deletes all data of deleted topics, when no broker does so any more."""
    runner = TransactionRunner(database, reconnect_timeout=RECONNECT_TIMEOUT, awaited=False)
    try:
        while runner.transact(_sweep_one):
            pass
    finally:
        runner.close()


def _sweep_one(session: Session) -> bool:
    """Deletes a part of one deleted topic's data; returns whether there was one."""
    deleted = deleted_topics(session, 1)
    if deleted:
        sweep(session, deleted[0])
    return bool(deleted)
