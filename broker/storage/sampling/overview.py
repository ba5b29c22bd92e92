"""What there is in all, for operators: counted from indexes, up to a limit of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ports.sampling import AgeBucket, Overview
from broker.storage.sampling.pending import MOST_COUNTED, pending_of_groups
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
        "SELECT COALESCE(SUM(next_offset), 0), COALESCE(SUM(next_offset - min_offset), 0),"
        " COALESCE(SUM(stored_bytes), 0) FROM queue WHERE deleted_at IS NULL"
    )
    released, stored, stored_bytes = (int(each) for each in found[0])
    letters = dead_letters(session)
    return Overview(
        time=now,
        database=database,
        schema_version=schema_version,
        pending=pending_of_groups(session, now),
        ages=_ages(session, now),
        topics=counted.topics - len(letters),
        consumer_groups=counted.consumer_groups,
        scheduled=counted.scheduled,
        released=released,
        stored=stored,
        stored_bytes=stored_bytes,
        dead_letters=sum(each.kept for each in letters),
    )


def _ages(session: Session, now: int) -> list[AgeBucket]:
    """Transactions without a verdict by their age, from half_due alone: by the times at the beginning of their ids."""
    whens = "".join(f" WHEN transaction_id >= ? THEN {number}" for number in range(len(AGES) + 1))
    # One state at a time, as in `pending`.
    query = (
        f"SELECT ?, CASE WHEN transaction_id >= ? THEN {_NO_TIME}{whens} ELSE {_NO_TIME} END AS age, COUNT(*)"
        f" FROM (SELECT transaction_id FROM half_message{session.dialect.by_index('half_due')} WHERE check_state = ?"
        f" LIMIT {MOST_COUNTED}) some_of_them GROUP BY age"
    )
    limits = [_id_at(now + _NEWEST), *[_id_at(now - age) for age in AGES], _id_at(_FIRST)]
    buckets = [AgeBucket(age) for age in (*AGES, None)]
    states = (TO_CHECK, LAST_CHECK_SENT, PARKED)
    for state, age, count in session.fetch_each(query, [(state, *limits, state) for state in states]):
        if int(age) == _NO_TIME:
            continue
        if int(state) == PARKED:
            buckets[int(age)].parked += int(count)
        else:
            buckets[int(age)].prepared += int(count)
    return buckets


def _id_at(time: int) -> bytes:
    """The smallest id of a time: the first 48 bits are milliseconds."""
    return max(0, time // 1000).to_bytes(6, "big") + bytes(10)
