"""Applies acks, nacks, extensions and holds to leases.

Messages without a message group are settled individually: a nacked one moves into a separate waiting lease, a held one
into a separate lease of the same consumer. The lease of a message group is nacked or held as a whole, so that its
messages keep their order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from broker.domain.lease import (
    LONGEST_HOLD,
    NEVER,
    Lease,
    Receipt,
    extended_until_at_most,
    held_too_long,
    offsets_of,
    receipt_gone,
    runs,
)
from broker.domain.place import InLog
from broker.errors import BrokerError
from broker.ports.delivery import AckOutcome, ExtendWork, HoldWork, NackWork, ReceiptOutcome
from broker.ports.queries import TimelineKind
from broker.storage.delivery import dead_letters, delivery_events, leases, message_groups
from broker.storage.delivery.delivery_events import Event
from broker.storage.delivery.fencing import refusal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.group import ConsumerGroup
    from broker.storage.catalog.directory import Directory
    from broker.storage.delivery.group_views import GroupMemory, GroupView
    from broker.storage.engine.session import Session

Outcome = ReceiptOutcome | AckOutcome | BrokerError
Outcomes = list[Outcome]


@dataclass(slots=True)
class Settlement:
    """Leases being changed.

    Attributes:
        session: a transaction that has locked them.
        leases: by number.
        now: the time.
        directory: topics, for dead letters.
        groups: consumer groups, for their retry policies.
        outcomes: the outcome of each item, by its index.
        back: new leases of nacked messages.
        held: new leases of single messages, by the index of their item.
        events: for the history.
        freed: groups with available leases now.
        views: groups read so far.
    """

    session: Session
    leases: dict[int, Lease]
    now: int
    directory: Directory
    groups: GroupMemory
    outcomes: Outcomes
    back: list[Lease] = field(default_factory=list)
    held: dict[int, Lease] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)
    views: dict[int, GroupView | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copies the leases: the original state is needed to store only changes."""
        self.leases = dict(self.leases)

    def ack(self, lease_id: int, bits: int) -> None:
        """Marks offsets as handled; `bits` counts from the lease's first one."""
        lease = self.leases[lease_id]
        new = bits & ~lease.settled
        if new:
            self._note(TimelineKind.ACKED, lease, offsets_of(new, lease.first))
        self.leases[lease_id] = lease.acked(bits)

    def extend(self, index: int, item: ExtendWork) -> None:
        """Extends a lease."""
        lease = self.leases[item.receipt.lease_id]
        if extended_until_at_most(lease.token, self.now) <= self.now:
            self.outcomes[index] = held_too_long()
            return
        until = self.now + item.lease_time
        self.leases[lease.lease_id] = replace(lease, available_at=until)
        self.outcomes[index] = ReceiptOutcome(expires_at=until, held_until=lease.available_at)

    def give_back(self, lease_id: int, items: Sequence[tuple[int, NackWork]]) -> None:
        """Nacks messages of a lease: for a retry, or to the dead letter topic."""
        lease = self.leases[lease_id]
        if lease.group_id not in self.views:
            self.views[lease.group_id] = self.groups.by_id(self.session, lease.group_id)
        view = self.views[lease.group_id]
        if view is None:
            return  # The group was deleted; there is no redelivery.
        # Messages handled (or nacked) in this batch, or before, are unchanged.
        open_items = [
            (index, item) for index, item in items if not lease.settled >> item.receipt.offset - lease.first & 1
        ]
        if lease.message_group is None:
            self.leases[lease_id] = self._give_back_loose(view.group, lease, open_items)
        else:
            self.leases[lease_id] = self._give_back_ordered(view.group, lease, open_items)

    def hold(self, index: int, item: HoldWork) -> None:
        """Holds a message for a time; after other operations on it in this batch."""
        receipt = item.receipt
        lease = self.leases[receipt.lease_id]
        most = extended_until_at_most(lease.token, self.now)
        until = self.now + item.time
        refusal = refusal_of(lease, receipt)
        if refusal is not None or lease.settled >> receipt.offset - lease.first & 1:
            self.outcomes[index] = refusal or receipt_gone()
            return
        if item.time and most <= self.now:
            self.outcomes[index] = held_too_long()
            return
        # The delivery gets another token, but keeps its start time.
        began = self.now if most == NEVER else most - LONGEST_HOLD
        if lease.message_group is not None:
            self.leases[lease.lease_id] = replace(lease, available_at=until)
        elif lease.count == 1:
            receipt = Receipt(lease.lease_id, leases.new_token(began), receipt.offset)
            self.leases[lease.lease_id] = replace(lease, token=receipt.token, available_at=until)
        else:
            own = lease.cut(receipt.offset, receipt.offset + 1)
            self.held[index] = replace(own, token=leases.new_token(began), available_at=until)
            self.leases[lease.lease_id] = lease.move_out([receipt.offset])
        self.outcomes[index] = ReceiptOutcome(expires_at=until, held_until=lease.available_at, receipt=receipt)
        if not item.time:
            self.freed.add(lease.group_id)

    def _give_back_loose(self, group: ConsumerGroup, lease: Lease, items: Sequence[tuple[int, NackWork]]) -> Lease:
        """Moves messages out of a lease: into waiting leases, or to the dead letter topic."""
        policy = group.retry_policy
        waiting: dict[tuple[int, int, str | None], list[int]] = defaultdict(list)
        lost: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for index, item in items:
            offset = item.receipt.offset
            if lease.settled >> offset - lease.first & 1:
                continue  # Nacked twice in this batch.
            lease = lease.move_out([offset])
            reason = item.reason or lease.last_error
            if item.untried:
                waiting[(self.now, lease.attempt - 1, lease.last_error)].append(offset)
                self.freed.add(lease.group_id)
            elif item.given_up or policy.exhausted(lease.attempt):
                lost[reason or "given back"].append((index, offset))
            else:
                delay = policy.delay_after(lease.attempt, item.delay)
                waiting[(self.now + delay, lease.attempt, reason)].append(offset)
                if not delay:
                    self.freed.add(lease.group_id)
        for reason, entries in lost.items():
            self._bury(group, lease, entries, reason)
        for (available_at, attempt, last_error), offsets in waiting.items():
            offsets.sort()
            self._note(TimelineKind.NACKED, lease, offsets, last_error)
            self.back += [
                Lease(
                    0,
                    lease.group_id,
                    lease.queue_id,
                    first,
                    count,
                    leases.new_token(self.now),
                    attempt,
                    available_at,
                    last_error=last_error,
                )
                for first, count in runs(offsets)
            ]
        return lease

    def _give_back_ordered(self, group: ConsumerGroup, lease: Lease, items: Sequence[tuple[int, NackWork]]) -> Lease:
        """Nacks the lease of a message group; a head with exhausted attempts is removed first."""
        policy = group.retry_policy
        for index, item in sorted(items, key=lambda entry: (entry[1].receipt.offset, entry[1].untried)):
            offset = item.receipt.offset
            if lease.settled >> offset - lease.first & 1:
                continue
            reason = item.reason or lease.last_error
            tried_enough = offset == lease.first_unsettled and policy.exhausted(lease.attempt)
            if item.given_up or (tried_enough and not item.untried):
                self._bury(group, lease, [(index, offset)], reason or "given back")
                lease = lease.acked(1 << offset - lease.first)
                continue
            delay = 0
            if not item.untried:
                delay = policy.delay_after(lease.attempt, item.delay)
            self._note(TimelineKind.NACKED, lease, [offset], lease.last_error if item.untried else reason)
            if not delay:
                self.freed.add(lease.group_id)
            return lease.back(
                token=leases.new_token(self.now), available_at=self.now + delay, untried=item.untried, reason=reason
            )
        return lease

    def _bury(self, group: ConsumerGroup, lease: Lease, entries: Sequence[tuple[int, int]], reason: str) -> None:
        offsets = sorted(offset for _, offset in entries)
        places = dead_letters.move(self.session, group, lease, offsets, reason, self.now, self.directory)
        kept = sorted(places)
        if kept:
            self._note(TimelineKind.DEAD_LETTERED, lease, kept, reason, places[kept[0]].offset)
        for index, offset in entries:
            if offset in places:
                place = places[offset]
                self.outcomes[index] = ReceiptOutcome(
                    dead_letter=InLog(place.queue_id, place.offset),
                    dead_letter_message_id=place.message_id,
                    held_until=lease.available_at,
                )

    def _note(
        self,
        kind: TimelineKind,
        lease: Lease,
        offsets: Sequence[int],
        reason: str | None = None,
        dead_letter: int | None = None,
    ) -> None:
        self.events.append(
            Event.at(
                kind,
                lease.group_id,
                lease.queue_id,
                offsets,
                attempt=lease.attempt,
                client_id=lease.owner,
                happened_at=self.now,
                reason=reason,
                dead_letter=dead_letter,
            )
        )

    def store(self, before: dict[int, Lease], *, keep_history: bool) -> None:
        """Writes the changes."""
        session = self.session
        done = [lease for lease in self.leases.values() if lease.done]
        changed = [self.leases[i] for i in sorted(before) if self.leases[i] != before[i] and not self.leases[i].done]
        plain = sorted(lease.lease_id for lease in done if lease.message_group is None)
        insertions = [leases.insertion(lease) for lease in self.held.values()]
        earlier = [lease for lease in changed if lease.available_at < before[lease.lease_id].available_at]
        moved = [*self.held.values(), *self.back, *earlier]
        guard = [leases.holding_groups(session, moved)] if moved else []
        statements = [
            *guard,
            *insertions,
            *session.deletion("lease", "lease_id", plain),
            *[leases.storing(lease) for lease in changed],
        ]
        if self.back:
            statements += session.insertion("lease", leases.INSERT_COLUMNS, [leases.values(each) for each in self.back])
        if keep_history:
            statements += delivery_events.recording(session, self.events)
        ordered = [lease for lease in done if lease.message_group is not None]
        if not moved and not ordered:
            session.finish(statements)
            self._tell_freed()
            return
        answers = session.execute_all(statements)
        there = {row[0] for answer in answers[: len(guard)] for row in answer.rows}
        stored = answers[len(guard) : len(guard) + len(insertions)]
        for answer, (index, lease) in zip(stored, self.held.items(), strict=True):
            held = self.outcomes[index]
            if lease.group_id not in there:
                self.outcomes[index] = receipt_gone()
            elif isinstance(held, ReceiptOutcome):
                held.receipt = Receipt(answer.last_id, lease.token, lease.first)
        # The group was deleted, and the rest of the lease has no owner.
        leases.drop_of_groups(session, {lease.group_id for lease in moved} - there)
        if ordered and message_groups.end_leases(session, ordered, self.now):
            self.freed.update(lease.group_id for lease in ordered)
        self._tell_freed()

    def _tell_freed(self) -> None:
        if self.freed:
            # Any item of the batch will do: it only has to wake this broker's consumers after the COMMIT.
            told = next((each for each in self.outcomes if not isinstance(each, BrokerError)), None)
            if told is not None:
                told.frees = tuple(self.freed)
