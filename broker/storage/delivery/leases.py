"""Leases as rows, and the turns of message groups.

A lease that is made of what was given back or held, or ends earlier than before, needs its group: see `holding_groups`.
The leases of a message group are made and ended while the progress of their consumer group in the queue is locked, so
whoever ends one sees all that stand behind it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from broker.domain.lease import NEVER, token_of
from broker.storage.engine.statements import Statement, insertion_of_one, marks
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from broker.domain.lease import Lease
    from broker.storage.engine.session import Session

INSERT_COLUMNS = (
    "group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner, settled, moved, last_error,"
    " message_group"
)

_random = random.SystemRandom()


def new_token(now: int) -> int:
    """A fencing token of a delivery that begins now; it cannot be guessed."""
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
    """Inserts a lease; the answer has its number."""
    return insertion_of_one("lease", INSERT_COLUMNS, values(lease))


def holding_groups(session: Session, moved: Iterable[Lease]) -> Statement:
    """Asks which groups of some leases exist, and keeps those from being deleted or moved until the transaction ends.

    Whoever takes leases away by group (a deletion, a seek) scans them in the order of their times, waits at one that is
    locked, and would miss what is made, or moved there, for an earlier time. A lease of what was never handed out needs
    no such care: who makes one holds the group's progress. Nor does one that is taken over: it lies ahead then.
    """
    wanted = sorted({lease.group_id for lease in moved})
    # In the order of the primary key, which MariaDB takes only then: see Dialect.by_index.
    query = (
        f"SELECT group_id FROM consumer_group{session.dialect.by_key} WHERE group_id IN ({marks(wanted)})"
        " ORDER BY group_id"
    )
    return Statement(query + session.dialect.for_share, wanted)


def drop_of_groups(session: Session, group_ids: Iterable[int]) -> int:
    """Deletes all leases of groups that are gone; how many."""
    return sum(session.run("DELETE FROM lease WHERE group_id = ?", (group_id,)) for group_id in sorted(group_ids))


def drop_orphans(session: Session) -> int:
    """Deletes leases whose group is gone; how many. Brokers of earlier versions left some.

    Reads the first entry of each group in an index of the leases.
    """
    leased = {row[0] for row in session.fetch("SELECT DISTINCT group_id FROM lease")}
    known = session.fetch_in("SELECT group_id FROM consumer_group WHERE group_id", sorted(leased))
    # A number is never given to another group: whoever is gone stays so.
    return drop_of_groups(session, leased - {row[0] for row in known})


def storing(lease: Lease) -> Statement:
    """Stores a lease that changed."""
    return Statement(
        "UPDATE lease SET first_offset = ?, message_count = ?, token = ?, attempt = ?, available_at = ?, owner = ?,"
        " settled = ?, moved = ?, last_error = ?, message_group = ? WHERE lease_id = ?",
        (*values(lease)[2:], lease.lease_id),
    )


def lock(session: Session, lease_ids: Iterable[int]) -> dict[int, Lease]:
    """Leases by number, locked; those that are gone are left out. By primary key."""
    found = session.fetch_in(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease{session.dialect.by_key} WHERE lease_id",
        sorted(lease_ids),
        " ORDER BY lease_id" + session.dialect.for_update,
    )
    return {row[0]: rows.lease_from_row(row) for row in found}


def groups_with_leases(session: Session, group_id: int, queue_id: int, message_groups: Collection[str]) -> set[str]:
    """Those of some message groups that have leases. Uses lease_queue."""
    wanted = sorted(message_groups)
    found = session.fetch(
        "SELECT DISTINCT message_group FROM lease WHERE group_id = ? AND queue_id = ?"
        f" AND message_group IN ({marks(wanted)})",
        (group_id, queue_id, *wanted),
    )
    return {row[0] for row in found}


def end(session: Session, ended: Sequence[Lease], now: int) -> bool:
    """Deletes leases, and has the next one of each message group take its turn; whether one can be taken now."""
    grouped = sorted({(lease.group_id, lease.queue_id) for lease in ended if lease.message_group is not None})
    for group_id, queue_id in grouped:
        # Nobody may put another lease behind one that is about to go.
        session.fetch(
            "SELECT next_offset FROM group_progress WHERE group_id = ? AND queue_id = ?" + session.dialect.for_update,
            (group_id, queue_id),
        )
    session.delete_in("lease", "lease_id", sorted(lease.lease_id for lease in ended))
    freed = False
    for lease in ended:
        if lease.message_group is not None:
            freed |= _next_turn(session, lease, now)
    return freed


def _next_turn(session: Session, ended: Lease, now: int) -> bool:
    """Frees the first lease of a message group, where all wait. Uses lease_queue."""
    found = session.fetch(
        "SELECT lease_id, available_at FROM lease WHERE group_id = ? AND queue_id = ? AND message_group = ?"
        " ORDER BY first_offset, lease_id",
        (ended.group_id, ended.queue_id, ended.message_group),
    )
    if not found or any(available_at < NEVER for _, available_at in found):
        return False
    session.run("UPDATE lease SET available_at = ? WHERE lease_id = ?", (now, found[0][0]))
    return True
