"""Which of the examined messages are delivered, and their leases."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from broker.domain.lease import NEVER, Lease
from broker.storage.delivery import leases, message_groups
from broker.storage.delivery.backlog import move_on
from broker.storage.log.ranges import (
    log_messages,
    messages_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import Candidate
    from broker.ports.delivery import Claimed, ClaimWork
    from broker.storage.delivery.backlog import Backlog
    from broker.storage.delivery.filter_results import Wanted
    from broker.storage.delivery.handout import Budget, Handout
    from broker.storage.engine.statements import Statement


@dataclass(slots=True)
class Plan:
    """Which of the examined messages are delivered.

    Attributes:
        following: the first offset that was not decided on.
        loose: offsets without a message group.
        grouped: offsets by message group, of groups without an open lease.
        waiting: offsets by message group, of groups that have a lease already.
    """

    following: int
    loose: list[int] = field(default_factory=list)
    grouped: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    waiting: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def plan_dispatch(
    handout: Handout,
    item: ClaimWork,
    backlog: Backlog,
    budget: Budget,
    passed: Sequence[Candidate | Wanted],
    end: int,
) -> Plan:
    """Decides which of the messages up to `end` are delivered, as far as they fit."""
    named = {candidate.message_group for candidate in passed if candidate.message_group is not None}
    group_id = handout.view.group.group_id
    taken = message_groups.groups_with_leases(handout.session, group_id, backlog.queue_id, named) if named else set()
    plan = Plan(end)
    messages, size = 0, 0
    for candidate in passed:
        group = candidate.message_group
        if group in taken:
            plan.waiting[group].append(candidate.offset)
            continue
        if messages == budget.messages or (messages and size + candidate.size > budget.size):
            plan.following = candidate.offset
            break
        messages += 1
        size += candidate.size
        if group is None:
            plan.loose.append(candidate.offset)
            continue
        plan.grouped[group].append(candidate.offset)
        if item.one_by_one:
            taken.add(group)
    return plan


def carry_out(
    handout: Handout, item: ClaimWork, backlog: Backlog, budget: Budget, claimed: Claimed, plan: Plan
) -> None:
    """Creates the leases of a plan, and delivers their messages."""
    group_id, queue_id = handout.view.group.group_id, backlog.queue_id
    until = handout.now + item.lease_time
    going = [(None, plan.loose)] if plan.loose else []
    held = [
        Lease.of_offsets(
            group_id,
            queue_id,
            offsets,
            token=leases.new_token(handout.now),
            attempt=1,
            available_at=until,
            owner=item.owner,
            message_group=group,
        )
        for group, offsets in [*going, *plan.grouped.items()]
    ]
    waiting = [
        Lease.of_offsets(
            group_id,
            queue_id,
            offsets,
            token=leases.new_token(handout.now),
            attempt=0,
            available_at=NEVER,
            message_group=group,
        )
        for group, offsets in plan.waiting.items()
    ]
    session = handout.session
    move_on(backlog, plan.following)
    statements: list[Statement] = []
    if waiting:
        # Those who take one message at a time would split what is joined again.
        statements += message_groups.queueing(session, waiting, joined=not item.one_by_one)
    before = len(statements)
    statements += [leases.insertion(lease) for lease in held]
    offsets = sorted(offset for lease in held for offset in lease.open_offsets())
    if offsets:
        statements.append(messages_at(queue_id, offsets))
    answers = session.execute_all(statements)
    if not offsets:
        return
    topic, queue_no = handout.places[queue_id]
    found = {message.offset: message for message in log_messages(topic.name, queue_no, answers[-1].rows)}
    emptied = []
    for planned, made in zip(held, answers[before:-1], strict=True):
        lease = replace(planned, lease_id=made.last_id)
        wanted = lease.open_offsets()
        messages = [found[offset] for offset in wanted if offset in found]
        # Retention may have deleted messages since they were examined.
        if not messages:
            emptied.append(lease)
            continue
        if len(messages) < len(wanted) and lease.message_group is not None:
            # The group would wait for them.
            lease = lease.move_out([offset for offset in wanted if offset not in found])
            session.execute_all([leases.storing(lease)])
        handout.deliver(lease, messages, budget, claimed)
    if emptied:
        handout.freed |= message_groups.end_leases(session, emptied, handout.now)
