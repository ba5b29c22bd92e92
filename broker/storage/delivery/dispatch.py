"""Handing out what was never handed out: ranges of a queue from a group's progress on.

Where no message has a message group and the group has no filter, a range goes out whole, as one lease. Mostly it is
read at once; where some of the last ones did not fit, sizes are looked at before. Else messages are looked at first,
without their bodies: those without a message group get a lease together, those of each message group one of their own,
which waits where the group's turn is not over. Of a group with a filter, what was judged before (see judging.py) goes
out the same way; what the filter does not want is skipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.lease import Lease
from broker.storage.delivery import delivery_events, leases
from broker.storage.delivery.backlog import Backlog, look, progressing, skip_expired
from broker.storage.delivery.judged import Judged
from broker.storage.delivery.plan import carry_out, plan_dispatch
from broker.storage.log.fitting import fitting
from broker.storage.log.ranges import (
    candidates,
    candidates_in,
    log_messages,
    plain_messages,
    range_of,
    sizes_of,
)

if TYPE_CHECKING:
    from broker.ports.delivery import Claimed, ClaimWork
    from broker.storage.delivery.handout import Budget, Handout
    from broker.storage.engine.statements import Statement

LARGEST_RANGE = 1024
_EXAMINED_PER_CLAIM = 16 * LARGEST_RANGE


def dispatch(handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed) -> None:
    """Hands out messages of a queue, as far as there is room."""
    topic, _ = handout.places[backlog.queue_id]
    wanted = handout.view.filters.get(topic.topic_id)
    examined = 0
    span = budget.messages
    while budget.left and backlog.left and not backlog.busy and examined < _EXAMINED_PER_CLAIM:
        before, taken = backlog.first, budget.messages
        if wanted is not None:
            going_on = _hand_out_judged(handout, item, backlog, budget, claimed)
        elif backlog.queue_id not in handout.view.looks_first:
            going_on = _hand_out_as_read(handout, item, backlog, budget, claimed)
        else:
            going_on = _hand_out_some(handout, item, backlog, budget, claimed, span)
        if not going_on:
            return
        examined += backlog.first - before
        # Where little goes out, one looks further at a time.
        span = budget.messages if budget.messages < taken else 2 * span


def _hand_out_judged(handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed) -> bool:
    """Hands out some of what the group's filter wants, where it has judged; whether it makes sense to go on."""
    judged = handout.view.judged.get(backlog.queue_id)
    if judged is None or judged.since(max(backlog.first, backlog.min_offset)) is None:
        claimed.unjudged = True
        return False
    look(handout, backlog)
    if backlog.busy:
        return False
    wanted = judged.since(max(backlog.first, backlog.min_offset))
    if wanted is None:
        claimed.unjudged = True
        return False
    # What goes out under one lease is a bitmap.
    end = min(judged.end, wanted[0].offset + LARGEST_RANGE) if wanted else judged.end
    plan = plan_dispatch(handout, item, backlog, budget, [each for each in wanted if each.offset < end], end)
    carry_out(handout, item, backlog, budget, claimed, plan)
    left = [each for each in wanted if each.offset >= plan.following]
    handout.view.judged[backlog.queue_id] = Judged(plan.following, judged.end, left)
    if plan.following < end:
        budget.close()
    return True


def _hand_out_some(
    handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed, span: int
) -> bool:
    """Hands out some of the next `span` messages; whether it makes sense to go on."""
    first = max(backlog.first, backlog.min_offset)
    most = min(backlog.head - first, LARGEST_RANGE, span)
    found = look(handout, backlog, sizes_of(backlog.queue_id, first, most))
    if backlog.busy:
        return False
    if max(backlog.first, backlog.min_offset) != first:
        return True  # Another broker handed some out in the meantime; look again from there.
    size, with_group = found.rows[0]
    if size is None:
        return skip_expired(handout, backlog)
    if not with_group:
        most = min(most, budget.messages)
        fits = most if size <= budget.size else fitting(handout.session, backlog.queue_id, first, most, budget.size)
        _hand_out_range(handout, item, backlog, budget, claimed, first, fits)
        if fits < most:
            budget.close()
        else:
            handout.view.looks_first.discard(backlog.queue_id)
        return True
    found = handout.session.execute_all([candidates_in(backlog.queue_id, first, most)])[0]
    topic, queue_no = handout.places[backlog.queue_id]
    examined = candidates(topic.name, queue_no, found.rows)
    if not examined:
        return skip_expired(handout, backlog)
    plan = plan_dispatch(handout, item, backlog, budget, examined, first + most)
    carry_out(handout, item, backlog, budget, claimed, plan)
    if plan.following < first + most:
        budget.close()
    return True


def _hand_out_as_read(handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed) -> bool:
    """Hands out a range that is read without a look at it; whether it makes sense to go on.

    Bodies that are large for the room are not read, so that it never costs more than twice of what there is room for.
    """
    first = max(backlog.first, backlog.min_offset)
    count = min(backlog.head - first, LARGEST_RANGE, budget.messages)
    found = look(handout, backlog, range_of(backlog.queue_id, first, count, largest=2 * budget.size // count))
    if backlog.busy:
        return False
    if max(backlog.first, backlog.min_offset) != first:
        return True  # Another broker handed some out in the meantime; look again from there.
    if not found.rows:
        return skip_expired(handout, backlog)
    topic, queue_no = handout.places[backlog.queue_id]
    messages = plain_messages(topic.name, queue_no, found.rows, budget.size)
    if messages is None:
        handout.view.looks_first.add(backlog.queue_id)
        return True
    lease, statements = _leasing_range(handout, item, backlog, first, count)
    made = handout.session.execute_all(statements)[0]
    handout.hand_over(replace(lease, lease_id=made.last_id), messages, budget, claimed)
    return True


def _leasing_range(
    handout: Handout, item: ClaimWork, backlog: Backlog, first: int, count: int
) -> tuple[Lease, list[Statement]]:
    """A new lease, and the statements that make it; the first one tells its number."""
    lease = Lease(
        0,
        handout.view.group.group_id,
        backlog.queue_id,
        first,
        count,
        leases.new_token(handout.now),
        1,
        handout.now + item.lease_time,
        item.owner,
    )
    # Nobody can ask for the history of one that retention took in the meantime.
    events = handout.deliveries(lease, range(first, first + count)) if handout.keeps_history else []
    moved_on = progressing(handout, backlog, first + count)
    return lease, [leases.insertion(lease), moved_on, *delivery_events.recording(handout.session, events)]


def _hand_out_range(
    handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed, first: int, count: int
) -> None:
    lease, statements = _leasing_range(handout, item, backlog, first, count)
    made, *_, read = handout.session.execute_all([*statements, range_of(backlog.queue_id, first, count)])
    topic, queue_no = handout.places[backlog.queue_id]
    messages = log_messages(topic.name, queue_no, read.rows)
    if not messages:
        # Retention was here since the look at the sizes.
        handout.session.run("DELETE FROM lease WHERE lease_id = ?", (made.last_id,))
        return
    handout.hand_over(replace(lease, lease_id=made.last_id), messages, budget, claimed)
