"""What there is in all, for operators: counted from indexes, up to a limit of each kind."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from broker.ports.sampling import AgeBucket, DeadLetters, Overview, PendingOfGroup
from broker.storage.sampling.pending import MOST_COUNTED
from broker.storage.sampling.totals import dead_letters, totals
from broker.storage.tables.rows import LAST_CHECK_SENT, PARKED, TO_CHECK

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

SECOND = 1_000_000
AGES = tuple(seconds * SECOND for seconds in (60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600))
"""The upper limits of ages (microseconds); older ones are in a last range."""
_NEWEST = 60 * SECOND
"""How far a producer's clock may be ahead of the database's."""
_FIRST = 1_577_836_800_000_000
"""2020: an id that begins with an earlier time does not begin with a time at all, nor does one of the future."""
_NO_TIME = len(AGES) + 1


def overview(session: Session, now: int, database: str, schema_version: str) -> Overview:
    """All of it; see GetOverviewResponse of the protocol."""
    counted = totals(session)
    # All queues: some ten thousand short rows.
    found = session.fetch(
        "SELECT COALESCE(SUM(q.next_offset), 0), COALESCE(SUM(q.next_offset - q.min_offset), 0),"
        " COALESCE(SUM(q.stored_bytes), 0) FROM queue q WHERE q.deleted_at IS NULL"
    )
    released, stored, stored_bytes = (int(each) for each in found[0])
    released, stored = released - _in_gaps(session, "0"), stored - _in_gaps(session, "q.min_offset")
    letters = dead_letters(session)
    with_some = sorted((each for each in letters if each.kept), key=_most_kept)
    pending, ages = _pending(session, now)
    return Overview(
        time=now,
        database=database,
        schema_version=schema_version,
        pending=pending,
        ages=ages,
        topics=counted.topics - len(letters),
        consumer_groups=counted.consumer_groups,
        scheduled=counted.scheduled,
        released=released,
        stored=stored,
        stored_bytes=stored_bytes,
        dead_letters=sum(each.kept for each in letters),
        dead_letters_by_group=with_some,
        dead_letter_groups=len(with_some),
        oldest_op=counted.oldest_op,
    )


def _in_gaps(session: Session, offset: str) -> int:
    """Offsets in the gaps of all queues, from an offset of each on that is not inside of one."""
    found = session.fetch(
        "SELECT COALESCE(SUM(g.end_offset - g.first_offset), 0)"
        f" FROM offset_gap g {session.dialect.joined_to} queue q ON q.queue_id = g.queue_id"
        f" WHERE q.deleted_at IS NULL AND g.first_offset >= {offset}"
    )
    return int(found[0][0])


def _pending(session: Session, now: int) -> tuple[list[PendingOfGroup], list[AgeBucket]]:
    """Transactions without a verdict, by group and by age: the times at the beginning of their ids.

    One pass over the entries of half_due in each state, and the oldest of each group by primary key.
    """
    whens = "".join(f" WHEN transaction_id >= ? THEN {number}" for number in range(len(AGES) + 1))
    # One state at a time: the server may read all of the index otherwise, with the half messages of sinks.
    query = (
        "SELECT ? AS state, producer_group_id,"
        f" CASE WHEN transaction_id >= ? THEN {_NO_TIME}{whens} ELSE {_NO_TIME} END AS age,"
        " COUNT(*), MIN(transaction_id), MIN(check_due_at)"
        f" FROM (SELECT producer_group_id, transaction_id, check_due_at FROM half_message"
        f"{session.dialect.by_index('half_due')} WHERE check_state = ? LIMIT {MOST_COUNTED}) some_of_them"
        " GROUP BY producer_group_id, age"
    )
    limits = [_id_at(now + _NEWEST), *[_id_at(now - age) for age in AGES], _id_at(_FIRST)]
    buckets = [AgeBucket(age) for age in (*AGES, None)]
    groups: defaultdict[int, PendingOfGroup] = defaultdict(lambda: PendingOfGroup(""))
    first: dict[int, bytes] = {}
    for state, group_id, age, count, own, due in session.fetch_each(
        query, [(state, *limits, state) for state in (TO_CHECK, LAST_CHECK_SENT, PARKED)]
    ):
        group = groups[int(group_id)]
        bucket = buckets[int(age)] if int(age) != _NO_TIME else AgeBucket(None)
        if int(state) == PARKED:
            group.parked += int(count)
            bucket.parked += int(count)
            continue
        group.pending += int(count)
        bucket.prepared += int(count)
        first[int(group_id)] = min(own, first.get(int(group_id), own))
        if int(state) == TO_CHECK and due is not None and due < now:
            group.due_since = due if group.due_since is None else min(due, group.due_since)
    _name(session, groups, first)
    return sorted((group for group in groups.values() if group.producer_group), key=_by_name), buckets


def _name(session: Session, groups: dict[int, PendingOfGroup], first: dict[int, bytes]) -> None:
    """Adds the names of groups, and when their first transactions were prepared."""
    named = "SELECT producer_group_id, name FROM producer_group WHERE producer_group_id"
    for group_id, name in session.fetch_in(named, sorted(groups)):
        groups[group_id].producer_group = name
    born = f"SELECT producer_group_id, born_at FROM half_message{session.dialect.by_key} WHERE position = 0"
    for group_id, born_at in session.fetch_in(f"{born} AND transaction_id", sorted(first.values())):
        groups[group_id].since = born_at


def _by_name(group: PendingOfGroup) -> str:
    return group.producer_group


def _most_kept(letters: DeadLetters) -> tuple[int, str]:
    return -letters.kept, letters.consumer_group


def _id_at(time: int) -> bytes:
    """The smallest id of a time: the first 48 bits are milliseconds."""
    return max(0, time // 1000).to_bytes(6, "big") + bytes(10)
