"""Numbers of what there is, without names, and dead letters by group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.domain.dead_letter import DEAD_LETTER_PREFIX
from broker.ports.sampling import DeadLetters, Totals
from broker.storage.catalog.gaps import gaps_since

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

MOST_COUNTED = 100_000
"""Rows of one kind that are counted; more count as so many."""


def totals(session: Session) -> Totals:
    """Uses scheduled_message's primary key, sink_prepared, op_decided and group_members."""
    return Totals(
        topics=_count(session, "topic WHERE deleted_at IS NULL"),
        consumer_groups=_count(
            session, f"consumer_group{session.dialect.by_index('group_members')} WHERE parent_id IS NULL"
        ),
        sink_transactions=_count(session, "sink_transaction"),
        sink_since=_one(session, "SELECT MIN(prepared_at) FROM sink_transaction"),
        scheduled=_count(session, "scheduled_message"),
        scheduled_due=_one(session, "SELECT MIN(deliver_at) FROM scheduled_message"),
        submissions=_count(session, "submission"),
        refused_submissions=_count(session, "refused_submission"),
        oldest_op=_one(session, "SELECT MIN(decided_at) FROM op_record"),
    )


def dead_letters(session: Session) -> list[DeadLetters]:
    """Dead letters of all groups, also of those without one: a counter has to begin at 0.

    A range of topic_name, and the queues of these topics.
    """
    behind = DEAD_LETTER_PREFIX[:-1] + chr(ord(DEAD_LETTER_PREFIX[-1]) + 1)
    found = session.fetch(
        f"SELECT t.name, SUM(q.next_offset - {gaps_since(session, '0')}),"
        f" SUM(q.next_offset - q.min_offset - {gaps_since(session, 'q.min_offset')})"
        f" FROM topic t {session.dialect.joined_to} queue q ON q.topic_id = t.topic_id"
        " WHERE t.name >= ? AND t.name < ? AND t.deleted_at IS NULL AND q.deleted_at IS NULL"
        " GROUP BY t.name",
        (DEAD_LETTER_PREFIX, behind),
    )
    return [DeadLetters(name.removeprefix(DEAD_LETTER_PREFIX), int(all_), int(kept)) for name, all_, kept in found]


def _count(session: Session, source: str) -> int:
    return int(session.fetch(f"SELECT COUNT(*) FROM (SELECT 1 FROM {source} LIMIT {MOST_COUNTED}) some_of_them")[0][0])


def _one(session: Session, query: str) -> Any:
    return session.fetch(query)[0][0]
