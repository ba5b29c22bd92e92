"""What brokers should have deleted or moved for some time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.ports.diagnosis import DAY, Finding, Severity
from broker.storage.diagnosis.subject import AT_MOST, counted, lasting
from broker.storage.groups.progress import first_unread
from broker.storage.log.schedule import earliest
from broker.storage.retention.topic_deletion import DELETED

if TYPE_CHECKING:
    from broker.storage.diagnosis.subject import Subject

MOST_NAMED = 5
_TASK = "retention"
_LONG_UNREAD = DAY
_MOST_LOOKED_UP = 100
"""Queues of which it is looked up whether a group keeps their messages."""


class _Behind(NamedTuple):
    """What is kept too long: what it is, and by how much."""

    what: str
    late: int


def retention(subject: Subject) -> list[Finding]:
    """Messages, records and half messages of sinks that are older than they are kept."""
    subject.need_tables()
    now = subject.now()
    messages, spared = _messages(subject, now)
    behind = sorted(messages + _records(subject, now), key=lambda each: -each.late)
    behind = [each for each in behind if subject.settings.behind.severity(each.late)]
    findings = [
        Finding(
            _TASK,
            subject.settings.behind.severity(each.late),
            f"{each.what} should have been deleted {lasting(each.late)} ago",
            _remedy(subject, now),
        )
        for each in behind[:MOST_NAMED]
    ]
    if len(behind) > MOST_NAMED:
        rest = counted(behind[MOST_NAMED:], "further one is behind, too", "further ones are behind, too")
        findings.append(Finding(_TASK, Severity.WARNING, rest, _remedy(subject, now)))
    if spared:
        worst = max(spared, key=lambda each: each.late)
        findings.append(
            Finding(
                _TASK,
                Severity.WARNING,
                f"groups with keep_unread have messages kept in {counted(spared, 'queue', 'queues')};"
                f" {worst.what} would have been deleted {lasting(worst.late)} ago",
                "start consumers of these groups, or set keep_unread of the group to false, or delete it",
            )
        )
    return findings or [Finding(_TASK, Severity.OK, "nothing is kept longer than it is to be")]


def _messages(subject: Subject, now: int) -> tuple[list[_Behind], list[_Behind]]:
    """Queues whose first message is expired: those that are behind, and those that a group keeps.

    Where there are groups that keep what is unread, only the latest queues are looked at.
    """
    session = subject.session
    late = sorted(_late_queues(subject, now), key=lambda each: -each.late)
    # Uses group_keeping.
    if not session.fetch("SELECT group_id FROM consumer_group WHERE keep_unread = 1 LIMIT 1"):
        return [each.behind for each in late], []
    behind, spared = [], []
    for each in late[:_MOST_LOOKED_UP]:
        unread = first_unread(session, each.queue_id)
        if unread is None or unread > each.low:
            behind.append(each.behind)
        elif each.late >= _LONG_UNREAD:
            spared.append(each.behind)
    return behind, spared


class _LateQueue(NamedTuple):
    """A queue whose first message, at the offset `low`, should have been deleted `late` microseconds ago."""

    queue_id: int
    low: int
    name: str
    late: int

    @property
    def behind(self) -> _Behind:
        return _Behind(f"the oldest message of the {self.name}", self.late)


def _late_queues(subject: Subject, now: int) -> list[_LateQueue]:
    """Reads two small tables, and one message of each queue by primary key."""
    session = subject.session
    joined, by_key = session.dialect.joined_to, session.dialect.by_key
    found: list[_LateQueue] = []
    after = 0
    while True:
        page = session.fetch(
            "SELECT q.queue_id, q.queue_no, own.name, q.min_offset, own.retention, m.stored_at"
            f" FROM queue q {joined} topic own ON own.topic_id = q.topic_id"
            f" {joined} message m{by_key} ON m.queue_id = q.queue_id AND m.log_offset = q.min_offset"
            " WHERE q.queue_id > ? AND q.deleted_at IS NULL ORDER BY q.queue_id LIMIT ?",
            (after, AT_MOST),
        )
        for queue_id, queue_no, topic, low, kept, stored_at in page:
            late = now - kept - stored_at
            if subject.settings.behind.severity(late):
                found.append(_LateQueue(queue_id, low, f"topic {topic}, queue {queue_no}", late))
        if len(page) < AT_MOST:
            return found
        after = page[-1][0]


def _records(subject: Subject, now: int) -> list[_Behind]:
    """The oldest record of each kind. One entry of an index each, or a thousand of op records."""
    session, settings = subject.session, subject.settings
    # Those of scheduled messages stay.
    decided = (
        "SELECT MIN(o.decided_at) FROM (SELECT transaction_id, decided_at FROM op_record WHERE decided_at < ?"
        f" ORDER BY decided_at LIMIT {AT_MOST}) o LEFT JOIN scheduled_message s"
        f"{session.dialect.by_index('scheduled_id')} ON s.transaction_id = o.transaction_id"
        " WHERE s.transaction_id IS NULL"
    )
    looked = (
        ("an op record", settings.keep_ops, decided, (now - settings.keep_ops,)),
        ("a deduplication key", 0, "SELECT MIN(expires_at) FROM dedup_key", ()),
        (
            "a record of a delivery",
            settings.keep_events,
            "SELECT happened_at FROM delivery_event ORDER BY event_id LIMIT 1",
            (),
        ),
        (
            "a half message of a sink",
            settings.keep_leftovers,
            "SELECT MIN(prepared_at) FROM sink_transaction",
            (),
        ),
        (
            "a refused submission",
            settings.keep_refused,
            "SELECT refused_at FROM refused_submission ORDER BY submission_id LIMIT 1",
            (),
        ),
        ("a record of who did what", settings.keep_audit, "SELECT MIN(happened_at) FROM audit_record", ()),
    )
    found = []
    for what, kept, query, values in looked:
        row = session.fetch_one(query, values)
        if row is not None and row[0] is not None:
            found.append(_Behind(what, now - kept - int(row[0])))
    return found


def _remedy(subject: Subject, now: int) -> str:
    """Names the broker whose turn it was last."""
    row = subject.session.fetch_one("SELECT broker_id, until FROM maintenance_turn WHERE task = ?", (_TASK,))
    if row is None:
        return "start a broker: none has deleted anything yet"
    if row[1] < now:
        return f"start a broker: the last one that deleted, {row[0]}, is gone for more than {lasting(now - row[1])}"
    return (
        f"look into the log of the broker {row[0]}, whose turn it is: it names what failed; if it deletes but does not"
        " keep up, give the database faster disks, or keep messages for a shorter time"
    )


def deletions(subject: Subject) -> list[Finding]:
    """Deleted topics with remaining data. Reads the small table `topic`."""
    subject.need_tables()
    now = subject.now()
    found = subject.some(f"SELECT topic_id FROM topic WHERE {DELETED}")
    first = subject.session.fetch(f"SELECT MIN(deleted_at) FROM topic WHERE {DELETED}")[0][0]
    late = now - (now if first is None else first)
    severity = subject.settings.behind.severity(late)
    if not severity:
        return [
            Finding(
                "deletions", Severity.OK, f"{counted(found, 'deleted topic is', 'deleted topics are')} being cleared"
            )
        ]
    return [
        Finding(
            "deletions",
            severity,
            f"messages of {counted(found, 'deleted topic', 'deleted topics')} are still there, the oldest was deleted"
            f" {lasting(late)} ago",
            _remedy(subject, now),
        )
    ]


def scheduled(subject: Subject) -> list[Finding]:
    """Delayed messages whose time came, and that were not moved into the log. Range of the primary key."""
    subject.need_tables()
    now = subject.now()
    due = earliest(subject.session)
    late = now - due if due is not None else 0
    severity = subject.settings.late.severity(late)
    if not severity:
        return [Finding("scheduled", Severity.OK, "no delayed message is late")]
    found = subject.some("SELECT topic_id FROM scheduled_message WHERE deliver_at <= ?", (now,))
    return [
        Finding(
            "scheduled",
            severity,
            f"{counted(found, 'delayed message is', 'delayed messages are')} late, the first by {lasting(late)}",
            'start a broker, if none is at work; otherwise its log says why they cannot be moved ("delayed messages")',
        )
    ]
