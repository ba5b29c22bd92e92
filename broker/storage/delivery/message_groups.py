"""Message groups: one lease of each is available at a time, in the order of the log; the next one follows at its end.

Leases of a message group are created and deleted while the progress of their consumer group in the queue is locked, so
a deletion sees all leases queued behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.lease import NEVER
from broker.storage.delivery import leases
from broker.storage.engine.statements import Statement, marks
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.domain.lease import Lease
    from broker.storage.engine.session import Session

# Servers take texts that differ in spaces at their end for the same; their lengths tell them apart.
_OF_GROUP = "group_id = ? AND queue_id = ? AND message_group = ? AND LENGTH(message_group) = LENGTH(?)"
_LAST = f"SELECT {rows.LEASE_COLUMNS} FROM lease WHERE {_OF_GROUP} ORDER BY first_offset DESC, lease_id DESC LIMIT 1"


def groups_with_leases(session: Session, group_id: int, queue_id: int, message_groups: Collection[str]) -> set[str]:
    """Those of some message groups that have leases. Uses lease_queue."""
    wanted = sorted(message_groups)
    found = session.fetch(
        "SELECT DISTINCT message_group, LENGTH(message_group) FROM lease WHERE group_id = ? AND queue_id = ?"
        f" AND message_group IN ({marks(wanted)})",
        (group_id, queue_id, *wanted),
    )
    return {row[0] for row in found}


def queueing(session: Session, waiting: Sequence[Lease], *, joined: bool) -> list[Statement]:
    """Statements that queue leases behind those of their message groups, whose progress is locked.

    The last one of a group takes in what follows, if it is queued itself. Otherwise a group that fell behind would be
    handed out in as many pieces as its messages were met in, one after the other, and would fall behind further.

    Args:
        session: a transaction.
        waiting: the leases.
        joined: whether the last one may take in what follows; otherwise each is a lease of its own.
    """
    if not joined:
        return session.insertion("lease", leases.INSERT_COLUMNS, [leases.values(lease) for lease in waiting])
    found = session.execute_all([Statement(_LAST, _key(lease)) for lease in waiting])
    statements, apart = [], []
    for lease, last in zip(waiting, found, strict=True):
        longer = rows.lease_from_row(last.rows[0]).joined(lease) if last.rows else None
        if longer is None:
            apart.append(leases.values(lease))
        else:
            statements.append(leases.storing(longer))
    return [*statements, *session.insertion("lease", leases.INSERT_COLUMNS, apart)] if apart else statements


def end_leases(session: Session, ended: Sequence[Lease], now: int) -> bool:
    """Deletes leases, and makes the next one of each message group available; returns whether one is available now."""
    grouped = sorted({(lease.group_id, lease.queue_id) for lease in ended if lease.message_group is not None})
    for group_id, queue_id in grouped:
        # No lease may be queued behind one that is about to be deleted.
        session.fetch(
            "SELECT next_offset FROM group_progress WHERE group_id = ? AND queue_id = ?" + session.dialect.for_update,
            (group_id, queue_id),
        )
    session.delete_in("lease", "lease_id", sorted(lease.lease_id for lease in ended))
    freed = False
    for lease in ended:
        if lease.message_group is not None:
            freed |= _free_next(session, lease, now)
    return freed


def _free_next(session: Session, ended: Lease, now: int) -> bool:
    """Makes the first lease of a message group available, if all are queued. Uses lease_queue."""
    found = session.fetch(
        f"SELECT lease_id, available_at FROM lease WHERE {_OF_GROUP} ORDER BY first_offset, lease_id", _key(ended)
    )
    if not found or any(available_at < NEVER for _, available_at in found):
        return False
    session.run("UPDATE lease SET available_at = ? WHERE lease_id = ?", (now, found[0][0]))
    return True


def _key(lease: Lease) -> tuple[int, int, str | None, str | None]:
    """Values of _OF_GROUP."""
    return lease.group_id, lease.queue_id, lease.message_group, lease.message_group
