"""First deliveries: ranges of a queue from a group's progress on.

If no message has a message group and the consumer group has no filter, a range is delivered as a whole, under one
lease. Mostly it is read at once; if some of the last ones did not fit, sizes are read first. Otherwise messages are
read first without their bodies: those without a message group share a lease, those of each message group get a separate
one, which waits while the group has an open lease. For a group with a filter, messages evaluated before (see
judging.py) are delivered the same way; those that do not match are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.domain.lease import LARGEST_RANGE, Lease
from broker.storage.delivery import delivery_events, leases
from broker.storage.delivery.backlog import Backlog, look, move_on, skip_expired
from broker.storage.delivery.filter_results import Judged
from broker.storage.delivery.handout import hand_over
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
    from collections.abc import Sequence

    from broker.ports.delivery import Claimed, ClaimWork
    from broker.storage.delivery.handout import Budget, Handout
    from broker.storage.engine.statements import Answer, Statement

_EXAMINED_PER_CLAIM = 16 * LARGEST_RANGE


def dispatch(handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed) -> None:
    """Delivers messages of a queue, as far as they fit."""
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
        # If few messages match, larger spans are examined at a time.
        span = budget.messages if budget.messages < taken else 2 * span


def _hand_out_judged(handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed) -> bool:
    """Delivers some of the evaluated messages that match the group's filter; returns whether to continue."""
    judged = handout.view.judged.get(backlog.queue_id)
    if judged is None or judged.since(backlog.position) is None:
        claimed.unjudged = True
        return False
    look(handout, backlog)
    if backlog.busy:
        return False
    wanted = judged.since(backlog.position)
    if wanted is None:
        claimed.unjudged = True
        return False
    # The messages of one lease are marked in a bitmap.
    end = judged.end
    if wanted:
        end = backlog.gaps.run_end(wanted[0].offset, min(end, wanted[0].offset + LARGEST_RANGE))
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
    """Delivers some of the next `span` messages; returns whether to continue."""
    first = backlog.position
    most = min(backlog.run_end - first, LARGEST_RANGE, span)
    found = look(handout, backlog, sizes_of(backlog.queue_id, first, most))
    if backlog.busy:
        return False
    if backlog.position != first:
        return True  # Another broker delivered some in the meantime; query again from there.
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
    """Delivers a range without examining it first; returns whether to continue.

    Bodies that are large for the remaining size are not read, so that it never costs more than twice the limit.
    """
    first = backlog.position
    count = min(backlog.run_end - first, LARGEST_RANGE, budget.messages)
    found = look(handout, backlog, range_of(backlog.queue_id, first, count, largest=2 * budget.size // count))
    if backlog.busy:
        return False
    if backlog.position != first:
        return True  # Another broker delivered some in the meantime; query again from there.
    if not found.rows:
        return skip_expired(handout, backlog)
    topic, queue_no = handout.places[backlog.queue_id]
    messages = plain_messages(topic.name, queue_no, found.rows, budget.size)
    if messages is None:
        handout.view.looks_first.add(backlog.queue_id)
        return True
    lease, statements = _leasing_range(handout, item, backlog, first, count)
    delivered = hand_over(lease, messages, budget, claimed)

    def note_number(answers: Sequence[Answer]) -> None:
        delivered.lease_id = answers[0].last_id

    handout.session.finish(statements, then=note_number)
    return True


def _leasing_range(
    handout: Handout, item: ClaimWork, backlog: Backlog, first: int, count: int
) -> tuple[Lease, list[Statement]]:
    """A new lease, and the statements that create it; the first one returns its number."""
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
    # The history of a message deleted by retention cannot be queried.
    events = handout.deliveries(lease, range(first, first + count)) if handout.keeps_history else []
    move_on(backlog, first + count)
    return lease, [leases.insertion(lease), *delivery_events.recording(handout.session, events)]


def _hand_out_range(
    handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed, first: int, count: int
) -> None:
    lease, statements = _leasing_range(handout, item, backlog, first, count)
    made, *_, read = handout.session.execute_all([*statements, range_of(backlog.queue_id, first, count)])
    topic, queue_no = handout.places[backlog.queue_id]
    messages = log_messages(topic.name, queue_no, read.rows)
    if not messages:
        # Retention has deleted messages since the sizes were read.
        handout.session.run("DELETE FROM lease WHERE lease_id = ?", (made.last_id,))
        return
    hand_over(replace(lease, lease_id=made.last_id), messages, budget, claimed)
