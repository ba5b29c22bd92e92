"""Redelivery: takes over due leases, which expired or were nacked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.lease import NEVER, Lease
from broker.ports.queries import TimelineKind
from broker.storage.delivery import dead_letters, leases, message_groups
from broker.storage.delivery.delivery_events import Event
from broker.storage.engine.statements import marks
from broker.storage.log.fitting import pieces_of, read_fitting
from broker.storage.tables import rows

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.ports.delivery import Claimed, ClaimWork
    from broker.storage.delivery.handout import Budget, Handout

GIVEN_UP_AT_ONCE = 8 * 1024 * 1024
"""Approximate bytes of bodies that a group's claims move to the dead letters in one database transaction."""


def redeliver(
    handout: Handout, item: ClaimWork, due: Collection[int], budget: Budget, claimed: Claimed
) -> Collection[int]:
    """Delivers due leases, as far as they fit; those with exhausted attempts become dead letters.

    Returns:
        Those that are no longer due, or locked by another broker.
    """
    found = handout.session.fetch(
        f"SELECT {rows.LEASE_COLUMNS} FROM lease{handout.session.dialect.by_key}"
        f" WHERE lease_id IN ({marks(due)}) AND available_at <= ?"
        " ORDER BY lease_id" + handout.session.dialect.skip_locked,
        (*sorted(due), handout.now),
    )
    ready = sorted(map(rows.lease_from_row, found), key=lambda lease: (lease.available_at, lease.lease_id))
    for index, lease in enumerate(ready):
        if not budget.left:
            left = {each.lease_id for each in ready[index:]}
            return [lease_id for lease_id in due if lease_id not in left]
        _redeliver_one(handout, item, lease, budget, claimed)
    return due


def _redeliver_one(handout: Handout, item: ClaimWork, lease: Lease, budget: Budget, claimed: Claimed) -> None:
    if handout.view.group.retry_policy.exhausted(lease.attempt):
        if handout.given_up >= GIVEN_UP_AT_ONCE:
            handout.freed = True
            return
        remaining = _give_up(handout, lease)
        if remaining is None:
            return
        lease = remaining
    topic, queue_no = handout.places[lease.queue_id]
    most = 1 if item.one_by_one and lease.message_group is not None else budget.messages
    kept, rest = read_fitting(
        handout.session, topic.name, queue_no, lease.queue_id, lease.open_offsets(), most, budget.size
    )
    if not kept:
        handout.freed |= message_groups.end_leases(handout.session, [lease], handout.now)
        return
    if lease.message_group is not None:
        lease = _without_gone(lease, {each.offset for each in kept}, rest)
    taken = lease.take_over(owner=item.owner, token=leases.new_token(handout.now), until=handout.now + item.lease_time)
    if rest is not None:
        taken = _leave_rest(handout, lease, taken, rest)
    if taken.lease_id:
        handout.session.execute_all([leases.storing(taken)])
    else:
        made = handout.session.execute_all([leases.insertion(taken)])[0]
        taken = replace(taken, lease_id=made.last_id)
    handout.deliver(taken, kept, budget, claimed)


def _without_gone(lease: Lease, kept: Collection[int], rest: int | None) -> Lease:
    """A lease without what retention has deleted of the part before `rest`, which would keep the group waiting."""
    gone = [offset for offset in lease.open_offsets() if offset not in kept and (rest is None or offset < rest)]
    if not gone:
        return lease
    left = lease.move_out(gone)
    # The attempts are those of the first one.
    return left if left.first_unsettled == lease.first_unsettled else replace(left, attempt=0, last_error=None)


def _leave_rest(handout: Handout, lease: Lease, taken: Lease, rest: int) -> Lease:
    """Splits a lease that does not fit; returns the part for the consumer."""
    end = lease.first + lease.count
    if lease.message_group is None:
        # The rest keeps its lease, due, so that late acks still count.
        handout.session.execute_all([leases.storing(replace(lease.cut(rest, end), lease_id=lease.lease_id))])
        handout.freed = True
        return taken.cut(lease.first, rest)
    # The rest waits for its turn.
    behind = replace(
        lease.cut(rest, end),
        token=leases.new_token(handout.now),
        attempt=0,
        available_at=NEVER,
        owner=None,
        last_error=None,
    )
    handout.session.execute_all([leases.insertion(behind)])
    return replace(taken.cut(lease.first, rest), lease_id=lease.lease_id)


def _give_up(handout: Handout, lease: Lease) -> Lease | None:
    """Moves messages with exhausted attempts to the dead letters; returns the rest of the lease, for its first attempt.

    In a message group that is the head; those after it were not tried. Otherwise it is one batch: the rest stays due,
    for the next claim, so that no consumer waits for all of them to be copied.
    """
    offsets = lease.open_offsets()
    if lease.message_group is not None:
        offsets = offsets[:1]
    elif offsets:
        offsets = pieces_of(handout.session, lease.queue_id, offsets, GIVEN_UP_AT_ONCE)[0]
    reason = lease.last_error or f"the lease of delivery {lease.attempt} expired"
    places = dead_letters.move(
        handout.session, handout.view.group, lease, offsets, reason, handout.now, handout.directory
    )
    handout.given_up += sum([place.size for place in places.values()])
    if places:
        kept = sorted(places)
        handout.events.append(
            Event.at(
                TimelineKind.DEAD_LETTERED,
                lease.group_id,
                lease.queue_id,
                kept,
                attempt=lease.attempt,
                client_id=lease.owner,
                happened_at=handout.now,
                reason=reason,
                dead_letter=places[kept[0]].offset,
            )
        )
    left = lease.move_out(offsets)
    if left.done:
        handout.freed |= message_groups.end_leases(handout.session, [left], handout.now)
        return None
    if lease.message_group is None:
        handout.session.execute_all([leases.storing(left)])
        handout.freed = True
        return None
    return replace(lease.settle(offsets), attempt=0, last_error=None)
