"""What is done once after a restore of the database, in one transaction, while no broker runs.

In the time that the restore undid, clients and other systems were given offsets, leases and epochs. The same numbers
would now be given again, for other messages. So the numbers of this state begin above all of those.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from broker.errors import ConfigurationError
from broker.ports.audit import AuditOutcome, AuditRecord
from broker.storage.catalog import audit, moves
from broker.storage.delivery import leases

if TYPE_CHECKING:
    from broker.storage.engine.session import Session

SPARE = 1 << 40
"""Numbers that are left free above known ones, where the clock is behind these; and as many again, by chance."""
_KNOWN = ("next_offset) FROM queue", "lease_id) FROM lease", "first_number) FROM restoration")


class AfterRestore(NamedTuple):
    """What was done: where numbers begin now, and how many queues, interrupted leases and sinks there are."""

    first_number: int
    queues: int
    leases: int
    sinks: int


def begin_anew(session: Session, now: int, told_by: str) -> AfterRestore:
    """Makes sure that nothing which was given in the time undone is given again.

    The next offset of each queue, and the next number of a lease, become the time in microseconds: no queue gets more
    than a message a microsecond, so this is above all that was given before, in whichever restored state.

    Args:
        session: a transaction.
        now: the time (microseconds).
        told_by: the operator.

    Raises:
        ConfigurationError: something is on its way to another cell.
    """
    if taken := moves.sealed(session):
        # Numbers of what was taken out would not jump, and yet have the gaps, wherever it is put in again.
        raise ConfigurationError(
            f"The move {', '.join(map(str, taken))} to another cell has taken topics, groups or sinks out of this"
            " database, and has not ended: take it back with `halfmq cells move --give-up`, or go on with"
            " `halfmq cells move --resume`, and run this again (in the latter case in the other cell, too).",
            field="database",
        )
    # A broker that was not stopped may just store something: what it commits comes before the gap.
    session.fetch("SELECT queue_id FROM queue ORDER BY queue_id" + session.dialect.for_update)
    first = _first_number(session, now)
    _leave_gaps(session, first)
    queues = session.run("UPDATE queue SET next_offset = ?", (first,))
    held = _end_leases(session, first, now)
    sinks = session.run("UPDATE sink SET went_back = 1")
    session.run("DELETE FROM broker")
    session.run("UPDATE maintenance_turn SET until = 0")
    # In this order: a broker that is to note what it noticed waits for this row, or its note is deleted.
    session.insert("restoration", "first_number, told_at, handled, told_by", [(first, now, 1, told_by)])
    session.run("DELETE FROM restoration WHERE handled = 0")
    detail = f"offsets and leases begin at {first}; {queues} queues, {held} leases ended, {sinks} sinks"
    record = AuditRecord(told_by, "", "halfmq restored", "UPDATE", "database", AuditOutcome.ALLOWED, detail=detail)
    audit.append(session, [record], now, "halfmq restored")
    return AfterRestore(first, queues, held, sinks)


def _first_number(session: Session, now: int) -> int:
    """The time, which differs each time that the same backup is restored; only if the clock is wrong it is no good."""
    greatest = max(int(session.fetch(f"SELECT MAX({each}")[0][0] or 0) for each in _KNOWN)
    return now if now > greatest else greatest + SPARE + random.SystemRandom().randrange(SPARE)


def _leave_gaps(session: Session, first: int) -> None:
    # A queue without messages since the last restore has two that touch: readers between them have missed nothing.
    session.run(
        "INSERT INTO offset_gap (queue_id, first_offset, end_offset) SELECT queue_id, next_offset, ? FROM queue",
        (first,),
    )


def _end_leases(session: Session, first: int, now: int) -> int:
    """Ends leases that were held: the attempt does not count, and their messages are due.

    Their holders may have settled them in the time undone, and would not do so again before the lease expires.
    """
    held = session.run(
        "UPDATE lease SET owner = NULL, token = ?, attempt = attempt - 1, available_at = ? WHERE owner IS NOT NULL",
        (leases.new_token(now), now),
    )
    # A number that is given explicitly moves the counter of the table in all databases.
    session.run(
        "INSERT INTO lease (lease_id, group_id, queue_id, first_offset, message_count, token, attempt, available_at)"
        " VALUES (?, 0, 0, 0, 1, 0, 0, 0)",
        (first,),
    )
    session.run("DELETE FROM lease WHERE lease_id = ?", (first,))
    return held
