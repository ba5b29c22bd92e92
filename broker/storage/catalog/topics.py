"""Topics: creating, changing, listing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.cell import name_of_topic
from broker.domain.limits import MAX_PRODUCER_GROUPS
from broker.errors import AlreadyExists, InvalidArgument, NotFound, Refused
from broker.ports.epochs import SINK_GROUP
from broker.storage.catalog import restorations
from broker.storage.catalog.directory import TOPIC_COLUMNS, read_topics
from broker.storage.catalog.moves import refuse_what_left
from broker.storage.catalog.quotas import check_room
from broker.storage.engine.statements import Statement, marks

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.domain.topic import Topic, TopicChange, TopicSettings
    from broker.storage.catalog.directory import Directory
    from broker.storage.engine.session import Session

_NEW_TOPIC = "name, queue_count, retention, created_at, retention_bytes, dedup_window, group_queues, compression"
_NEW_QUEUE = "topic_id, queue_no, next_offset, min_offset, priority"


def create_topic(session: Session, name: str, settings: TopicSettings, now: int) -> Topic:
    """Creates a topic with its queues: the ordinary ones first, then one for each priority above 0.

    Raises:
        AlreadyExists: the name is taken.
        Moved: it was moved to another cell.
        Overloaded: its tenant has as many as it may have.
    """
    count = settings.queue_count
    values = (
        name,
        count,
        settings.retention,
        now,
        settings.retention_bytes,
        settings.dedup_window,
        count,
        int(settings.compression),
    )
    if not session.insert("topic", _NEW_TOPIC, [values], keep_existing="name"):
        raise AlreadyExists(f"The topic {name!r} exists already.", reason="TOPIC_EXISTS", field="topic.name")
    refuse_what_left(session, name_of_topic(name))
    check_room(session, name, is_group=False)
    topic_id = session.fetch("SELECT topic_id FROM topic WHERE name = ?", (name,))[0][0]
    priorities = [0] * count + list(range(1, settings.priority_levels))
    session.insert(
        "queue", _NEW_QUEUE, [(topic_id, number, 0, 0, priority) for number, priority in enumerate(priorities)]
    )
    # Read from the tables and not cached: until the COMMIT the creation may still fail.
    return _must_read(session, topic_id, name)


def _must_read(session: Session, topic_id: int, name: str) -> Topic:
    found = session.fetch(f"SELECT {TOPIC_COLUMNS} FROM topic WHERE topic_id = ? AND deleted_at IS NULL", (topic_id,))
    if not found:
        raise NotFound(f"There is no topic {name!r}.", reason="TOPIC_NOT_FOUND", field="topic")
    return read_topics(session, found)[0]


def update_topic(session: Session, topic: Topic, change: TopicChange) -> Topic:
    """Changes a topic; new queues get the next numbers, so no queue and no message group moves.

    Raises:
        NotFound: it was deleted.
        InvalidArgument: a setting is out of bounds, or queues would be removed.
    """
    # Concurrent changes of the same topic wait here.
    session.fetch("SELECT 1 FROM topic WHERE topic_id = ?" + session.dialect.for_update, (topic.topic_id,))
    before = _must_read(session, topic.topic_id, topic.name)
    settings = change.applied_to(before)
    settings.check()
    if settings.queue_count < before.queue_count:
        raise InvalidArgument(
            f"The topic has {before.queue_count} queues; their number can only grow.", field="queue_count"
        )
    session.run(
        "UPDATE topic SET queue_count = ?, retention = ?, retention_bytes = ?, dedup_window = ?, compression = ?"
        " WHERE topic_id = ?",
        (
            settings.queue_count,
            settings.retention,
            settings.retention_bytes,
            settings.dedup_window,
            int(settings.compression),
            topic.topic_id,
        ),
    )
    first = len(before.queue_ids)
    added = settings.queue_count - before.queue_count
    if added:
        begin = restorations.first_offset(session, topic.topic_id, before.created_at)
        new = [(topic.topic_id, number, begin, 0, 0) for number in range(first, first + added)]
        session.insert("queue", _NEW_QUEUE, new)
        if begin:
            session.run(
                "INSERT INTO offset_gap (queue_id, first_offset, end_offset)"
                " SELECT queue_id, 0, next_offset FROM queue WHERE topic_id = ? AND queue_no >= ?",
                (topic.topic_id, first),
            )
    return _must_read(session, topic.topic_id, topic.name)


def has_topic(session: Session, topic: Topic) -> bool:
    """Whether this topic exists, not another one of its name.

    Waits for a concurrent creation or deletion: it may be a COMMIT without an answer that has not taken effect yet.
    """
    query = "SELECT 1 FROM topic WHERE topic_id = ? AND deleted_at IS NULL" + session.dialect.for_update
    return bool(session.fetch(query, (topic.topic_id,)))


def holding(session: Session, topic_ids: Collection[int]) -> Statement:
    """Statement for the existing ones of some topics; locks them against deletion until the transaction ends.

    A cached topic may be outdated. A transaction that stores half messages or scheduled ones runs this: the deletion
    either sees them, or is seen. Brokers do not wait for each other here.
    """
    # Ordered by the primary key, which MariaDB uses only then: see Dialect.by_index.
    return Statement(
        f"SELECT topic_id FROM topic{session.dialect.by_key} WHERE topic_id IN ({marks(topic_ids)})"
        f" AND deleted_at IS NULL ORDER BY topic_id{session.dialect.for_share}",
        sorted(topic_ids),
    )


def asking(topic_ids: Collection[int]) -> Statement:
    """Statement for the existing ones of some topics, if their deletion is prevented otherwise, as by half messages."""
    query = f"SELECT topic_id FROM topic WHERE topic_id IN ({marks(topic_ids)}) AND deleted_at IS NULL"
    return Statement(query, sorted(topic_ids))


def list_topics(session: Session, after: str, limit: int, directory: Directory) -> list[Topic]:
    """Topics by name, after `after`."""
    # Not estimated: for that MySQL reads pages all over the range, the more, the more topics there are.
    index = session.dialect.by_index("topic_name")
    query = f"SELECT {TOPIC_COLUMNS} FROM topic{index} WHERE name > ? AND deleted_at IS NULL ORDER BY name LIMIT ?"
    return directory.load(session, lambda: session.fetch(query, (after, limit)))


def producer_group_id(session: Session, name: str) -> int:
    """The number of a producer group; created if new.

    Raises:
        Refused: there are too many already.
        Overloaded: its tenant has as many groups as it may have.
    """
    found = find_producer_group(session, name)
    if found is None:
        count = session.fetch("SELECT COUNT(*) FROM producer_group")[0][0]
        if count >= MAX_PRODUCER_GROUPS and name != SINK_GROUP:
            raise Refused(
                f"There are {count} producer groups, and no more are made. A producer group is what producers with the"
                " same code have in common; it is not to be a new one at each start.",
                reason="TOO_MANY_PRODUCER_GROUPS",
                field="producer_group",
            )
        if session.insert("producer_group", "name", [(name,)], keep_existing="name"):
            check_room(session, name, is_group=True)
        found = find_producer_group(session, name)
        assert found is not None  # noqa: S101 - it was inserted
    return found


def find_producer_group(session: Session, name: str) -> int | None:
    """The number of a producer group; None if there is none."""
    row = session.fetch_one("SELECT producer_group_id FROM producer_group WHERE name = ?", (name,))
    return None if row is None else int(row[0])


def producer_groups(session: Session) -> dict[int, str]:
    """The names of all producer groups by their numbers."""
    return dict(session.fetch("SELECT producer_group_id, name FROM producer_group"))
