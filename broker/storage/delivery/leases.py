"""Leases as rows.

Creating a lease from nacked or held messages, or shortening one, requires its group's lock: see `holding_groups`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from broker.domain.lease import token_of
from broker.storage.engine.statements import Statement, insertion_of_one, marks, rows_of, selection
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.domain.lease import Lease
    from broker.storage.engine.session import Session

INSERT_COLUMNS = (
    "group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner, settled, moved, last_error,"
    " message_group"
)

_random = random.SystemRandom()


def new_token(now: int) -> int:
    """An unguessable fencing token of a delivery that begins now."""
    return token_of(now, _random.getrandbits(62))


def values(lease: Lease) -> tuple[object, ...]:
    """The values of INSERT_COLUMNS."""
    return (
        lease.group_id,
        lease.queue_id,
        lease.first,
        lease.count,
        lease.token,
        lease.attempt,
        lease.available_at,
        lease.owner,
        rows.encode_bits(lease.settled, lease.count),
        rows.encode_bits(lease.moved, lease.count),
        lease.last_error,
        lease.message_group,
    )


def insertion(lease: Lease) -> Statement:
    """Statement that inserts a lease; its result has the number."""
    return insertion_of_one("lease", INSERT_COLUMNS, values(lease))


def holding_groups(session: Session, moved: Iterable[Lease]) -> Statement:
    """Statement for the existing groups of some leases; locks them against deletion and moves.

    A deletion or a seek scans a group's leases in the order of their times, waits at a locked one, and would miss
    leases that are created, or moved, before that position. Leases of first deliveries are safe: their creation locks
    the group's progress. So are leases that are taken over: they are moved ahead.
    """
    wanted = sorted({lease.group_id for lease in moved})
    # Ordered by the primary key, which MariaDB uses only then: see Dialect.by_index.
    query = (
        f"SELECT group_id FROM consumer_group{session.dialect.by_key} WHERE group_id IN ({marks(wanted)})"
        " ORDER BY group_id"
    )
    return Statement(query + session.dialect.for_share, wanted)


def drop_of_groups(session: Session, group_ids: Iterable[int]) -> int:
    """Deletes all leases of deleted groups; returns how many."""
    return sum(session.run("DELETE FROM lease WHERE group_id = ?", (group_id,)) for group_id in sorted(group_ids))


def drop_orphans(session: Session) -> int:
    """Deletes orphaned leases of deleted groups; returns how many. Brokers of earlier versions left some.

    Reads the first entry of each group in an index of the leases.
    """
    leased = {row[0] for row in session.fetch("SELECT DISTINCT group_id FROM lease")}
    known = session.fetch_in("SELECT group_id FROM consumer_group WHERE group_id", sorted(leased))
    # Group numbers are never reused.
    return drop_of_groups(session, leased - {row[0] for row in known})


def storing(lease: Lease) -> Statement:
    """Stores a lease that changed."""
    return Statement(
        "UPDATE lease SET first_offset = ?, message_count = ?, token = ?, attempt = ?, available_at = ?, owner = ?,"
        " settled = ?, moved = ?, last_error = ?, message_group = ? WHERE lease_id = ?",
        (*values(lease)[2:], lease.lease_id),
    )


def lock(session: Session, lease_ids: Iterable[int]) -> dict[int, Lease]:
    """Leases by number, locked; missing ones are omitted. By primary key."""
    found = rows_of(session.execute_all(locking(session, sorted(lease_ids))))
    return {row[0]: rows.lease_from_row(row) for row in found}


def locking(session: Session, lease_ids: Sequence[int]) -> list[Statement]:
    """Statements that lock leases. By primary key."""
    return selection(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease{session.dialect.by_key} WHERE lease_id",
        lease_ids,
        " ORDER BY lease_id" + session.dialect.for_update,
    )
