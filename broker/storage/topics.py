"""Topics and groups: creating, listing, deleting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.retry import dead_letter_topic
from broker.domain.topic import ConsumerGroup, QueueState, Topic
from broker.errors import AlreadyExists, NotFound, Refused
from broker.storage.log import group_marks
from broker.storage.session import Session, marks

if TYPE_CHECKING:
    from broker.storage.directory import Directory

_GROUP_COLUMNS = "group_id, name, max_attempts, created_at"
_DELETE_AT_ONCE = 1000


def create_topic(session: Session, name: str, queue_count: int, retention: int, now: int) -> Topic:
    """Creates a topic with its queues.

    Raises:
        AlreadyExists: the name is taken.
    """
    values = (name, queue_count, retention, now)
    if not session.insert("topic", "name, queue_count, retention, created_at", [values], keep_existing="name"):
        raise AlreadyExists(f"The topic {name!r} exists already.", reason="TOPIC_EXISTS", field="topic.name")
    topic_id = session.fetch("SELECT topic_id FROM topic WHERE name = ?", (name,))[0][0]
    session.insert(
        "queue",
        "topic_id, queue_no, next_offset, min_offset",
        [(topic_id, number, 0, 0) for number in range(queue_count)],
    )
    # Read from the tables and not remembered: until the COMMIT it may still turn out that there is no such topic.
    queues = session.fetch("SELECT queue_id FROM queue WHERE topic_id = ? ORDER BY queue_no", (topic_id,))
    return Topic(topic_id, name, retention, now, tuple(row[0] for row in queues))


def has_topic(session: Session, topic: Topic) -> bool:
    """Whether this very topic exists, not another one of its name."""
    return bool(session.fetch("SELECT 1 FROM topic WHERE topic_id = ?", (topic.topic_id,)))


def list_topics(session: Session, after: str, limit: int, directory: Directory) -> list[Topic]:
    """Topics by name, from behind `after` on."""
    found = session.fetch(
        "SELECT topic_id, name, retention, created_at FROM topic WHERE name > ? ORDER BY name LIMIT ?", (after, limit)
    )
    return directory.remember(session, [(row[0], row[1], row[2], row[3]) for row in found])


def delete_topic(session: Session, topic: Topic, directory: Directory) -> None:
    """Deletes a topic, its queues and messages.

    Raises:
        NotFound: it is gone already.
        Refused: half messages or leases refer to it.
    """
    locked = session.fetch(
        "SELECT topic_id FROM topic WHERE topic_id = ?" + session.dialect.for_update, (topic.topic_id,)
    )
    if not locked:
        raise NotFound(f"There is no topic {topic.name!r}.", reason="TOPIC_NOT_FOUND", field="topic")
    # Reads the half messages, which are few.
    if session.fetch("SELECT 1 FROM half_message WHERE topic_id = ? LIMIT 1", (topic.topic_id,)):
        raise Refused(
            f"Transactions without a verdict have messages for {topic.name!r}; resolve them first (ListTransactions).",
            reason="TOPIC_IN_USE",
            field="topic",
        )
    queues = topic.queue_ids
    # First the progress: a pull holds it, and without it nobody hands out more.
    session.run(f"DELETE FROM group_progress WHERE queue_id IN ({marks(queues)})", queues)
    if session.fetch(f"SELECT 1 FROM lease WHERE queue_id IN ({marks(queues)}) LIMIT 1", queues):
        raise Refused(
            f"Consumers hold messages of {topic.name!r}; stop them, or delete their groups, first.",
            reason="TOPIC_IN_USE",
            field="topic",
        )
    for queue_id in queues:
        while head := _head(session, queue_id):
            session.run(
                "DELETE FROM message WHERE queue_id = ? AND log_offset >= ? AND log_offset <= ?",
                (queue_id, head[0], head[-1]),
            )
    session.run("DELETE FROM queue WHERE topic_id = ?", (topic.topic_id,))
    session.run("DELETE FROM topic WHERE topic_id = ?", (topic.topic_id,))
    directory.forget(topic)


def _head(session: Session, queue_id: int) -> list[int]:
    found = session.fetch(
        "SELECT log_offset FROM message WHERE queue_id = ? ORDER BY log_offset LIMIT ?", (queue_id, _DELETE_AT_ONCE)
    )
    return [row[0] for row in found]


def find_group(session: Session, name: str) -> ConsumerGroup | None:
    """A consumer group by name."""
    row = session.fetch_one(f"SELECT {_GROUP_COLUMNS} FROM consumer_group WHERE name = ?", (name,))
    return ConsumerGroup(*row) if row else None


def create_group(
    session: Session, name: str, max_attempts: int, retention: int, now: int, directory: Directory
) -> ConsumerGroup:
    """Creates a consumer group, and its dead letter topic with one queue.

    Raises:
        AlreadyExists: the name is taken.
    """
    values = (name, max_attempts, now)
    if not session.insert("consumer_group", "name, max_attempts, created_at", [values], keep_existing="name"):
        raise AlreadyExists(f"The group {name!r} exists already.", reason="GROUP_EXISTS", field="group.name")
    if directory.by_name(session, dead_letter_topic(name)) is None:
        create_topic(session, dead_letter_topic(name), 1, retention, now)
    group = find_group(session, name)
    if group is None:
        raise NotFound(f"The group {name!r} was deleted.", reason="GROUP_NOT_FOUND", field="group.name")
    return group


def list_groups(session: Session, after: str, limit: int) -> list[ConsumerGroup]:
    """Consumer groups by name, from behind `after` on."""
    found = session.fetch(
        f"SELECT {_GROUP_COLUMNS} FROM consumer_group WHERE name > ? ORDER BY name LIMIT ?", (after, limit)
    )
    return [ConsumerGroup(*row) for row in found]


def delete_group(session: Session, group: ConsumerGroup) -> None:
    """Deletes a consumer group with its progress and leases; its dead letter topic stays."""
    # First the group: who joins it holds it.
    session.fetch("SELECT 1 FROM consumer_group WHERE group_id = ?" + session.dialect.for_update, (group.group_id,))
    # Then the progress: a pull holds it while it adds its lease.
    session.run("DELETE FROM group_progress WHERE group_id = ?", (group.group_id,))
    session.run("DELETE FROM lease WHERE group_id = ?", (group.group_id,))
    session.run("DELETE FROM consumer_group WHERE group_id = ?", (group.group_id,))


def group_progress(session: Session, group: ConsumerGroup, directory: Directory) -> list[QueueState]:
    """How far a group has come in every queue it joined."""
    found = session.fetch(
        "SELECT q.queue_id, q.min_offset, q.next_offset FROM group_progress p JOIN queue q ON q.queue_id = p.queue_id"
        " WHERE p.group_id = ? ORDER BY q.queue_id",
        (group.group_id,),
    )
    if not found:
        return []
    progress = group_marks(session, group, [row[0] for row in found])
    states = []
    for queue_id, low, high in found:
        place = directory.of_queue(session, queue_id)
        if place is not None:
            following, committed, in_flight = progress[queue_id]
            states.append(QueueState(place[0].name, place[1], low, high, following, max(committed, low), in_flight))
    return states


def producer_group_id(session: Session, name: str) -> int:
    """The number of a producer group; it is made when new."""
    query = "SELECT producer_group_id FROM producer_group WHERE name = ?"
    row = session.fetch_one(query, (name,))
    if row is None:
        session.insert("producer_group", "name", [(name,)], keep_existing="name")
        row = session.fetch(query, (name,))[0]
    return int(row[0])
