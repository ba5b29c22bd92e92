"""The events of a message's transaction, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.domain.message import DELIVER_AT
from broker.domain.place import Recalled, Scheduled
from broker.domain.transaction import TransactionState, VerdictSource
from broker.ports.queries import TimelineEvent, TimelineKind

if TYPE_CHECKING:
    from broker.domain.message import LogMessage
    from broker.domain.place import Place
    from broker.ports.transactions import CheckEntry, TransactionDetail


_AFTER_THE_VERDICT = {TimelineKind.SCHEDULED, TimelineKind.RECALLED, TimelineKind.RELEASED}


def transaction_events(detail: TransactionDetail, position: int, message: LogMessage | None) -> list[TimelineEvent]:
    """The events until the message became visible to consumers, in order.

    Args:
        detail: the message's transaction.
        position: of the message in it.
        message: in the log, if it is there.
    """
    summary, op = detail.summary, detail.op
    events = []
    if op is None or op.source is not VerdictSource.SEND:
        events.append(TimelineEvent(TimelineKind.PREPARED, summary.prepared_at, summary.producer_group))
    for check in detail.checks:
        events += _check_events(check, summary.producer_group)
    for action in detail.operator_actions:
        reason = f"{action.action}: {action.reason}"
        events.append(
            TimelineEvent(TimelineKind.OPERATOR_ACTED, action.acted_at, client_id=action.operator, reason=reason)
        )
    if detail.parked_at is not None:
        events.append(TimelineEvent(TimelineKind.PARKED, detail.parked_at, summary.producer_group))
    if op is not None:
        kind = TimelineKind.COMMITTED if op.state is TransactionState.COMMITTED else TimelineKind.ROLLED_BACK
        events.append(
            TimelineEvent(kind, op.decided_at, summary.producer_group, source=op.source, reason=op.reason or "")
        )
        if position < len(op.released):
            events += _release_events(op.released[position], op.decided_at, message)
    decided_at = summary.prepared_at if op is None else max(summary.prepared_at, op.decided_at)

    def order(event: TimelineEvent) -> tuple[int, TimelineKind]:
        # In causal order, although the times of two brokers can differ slightly.
        not_before = decided_at if event.kind in _AFTER_THE_VERDICT else summary.prepared_at
        return max(event.happened_at, not_before), event.kind

    return sorted(events, key=order)


def _check_events(check: CheckEntry, group: str) -> list[TimelineEvent]:
    sent = TimelineEvent(TimelineKind.CHECK_SENT, check.sent_at, group, check.client_id, check.check_number)
    if check.answered_at is None:
        return [sent]
    answered = TimelineEvent(
        TimelineKind.CHECK_ANSWERED,
        check.answered_at,
        group,
        check.client_id,
        check.check_number,
        verdict=check.verdict,
        reason=check.reason or "",
    )
    return [sent, answered]


def _release_events(place: Place, decided_at: int, message: LogMessage | None) -> list[TimelineEvent]:
    if isinstance(place, Scheduled):
        return [TimelineEvent(TimelineKind.SCHEDULED, decided_at, place=place)]
    if isinstance(place, Recalled):
        waited = TimelineEvent(TimelineKind.SCHEDULED, decided_at, place=Scheduled(place.due, place.topic_id))
        return [waited, TimelineEvent(TimelineKind.RECALLED, place.recalled_at)]
    events = []
    if message is not None and int(message.properties.get(DELIVER_AT, 0)) > decided_at:
        waited_for = Scheduled(int(message.properties[DELIVER_AT]))
        events.append(TimelineEvent(TimelineKind.SCHEDULED, decided_at, place=waited_for))
    # The time of a message deleted by retention is unknown; mostly it was immediate.
    released_at = decided_at if message is None else message.stored_at
    events.append(TimelineEvent(TimelineKind.RELEASED, released_at, place=place))
    return events
