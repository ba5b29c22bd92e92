"""Transactions, verdicts and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.api.converters.messages import fill_position, halves_out, message_in, position
from broker.domain.ids import format_id, parse_id
from broker.errors import BrokerError, InvalidArgument, VerdictConflict
from broker.services.producing.validation import HalfTransaction
from broker.wire.status import item_error
from broker.wire.times import micros, timestamp
from halfmq.v1 import admin_pb2, message_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as RepeatedCompositeContainer

    from broker.domain.limits import Limits
    from broker.domain.message import LogPosition, Message
    from broker.ports.checks import ClaimedCheck
    from broker.ports.transactions import TransactionDetail, TransactionSummary
    from broker.services.producing.transactions import PlacedOutcome


def half_transaction(item: transaction_pb2.HalfTransaction, limits: Limits) -> HalfTransaction | BrokerError:
    """An item of Prepare, or its error."""
    try:
        limits.check_halves(item.first_position, len(item.messages))
        transaction_id = parse_id(item.transaction_id, optional=True) if item.transaction_id else None
        delay = micros(item.first_check_delay, "first_check_delay") if item.HasField("first_check_delay") else 0
        messages = messages_of(item.messages)
    except InvalidArgument as error:
        return error
    return HalfTransaction(transaction_id, messages, item.first_position, delay)


def messages_of(given: Iterable[message_pb2.Message]) -> list[Message]:
    """Half messages.

    Raises:
        InvalidArgument: one of them is invalid.
    """
    return [_half_in(index, message) for index, message in enumerate(given)]


def _half_in(index: int, message: message_pb2.Message) -> Message:
    if message.message_id:
        raise InvalidArgument(
            "A half message is named by its transaction; leave message_id empty.",
            field=f"messages[{index}].message_id",
        )
    try:
        return message_in(message)
    except InvalidArgument as error:
        raise error.within(f"messages[{index}]") from None


def add_transaction_result(
    results: RepeatedCompositeContainer[transaction_pb2.TransactionResult],
    outcome: PlacedOutcome | BrokerError,
    transaction_id: str = "",
) -> None:
    """Adds the outcome of one transaction to an answer; in place, because building it separately copies it."""
    if isinstance(outcome, BrokerError):
        state = outcome.state if isinstance(outcome, VerdictConflict) else 0
        results.add(transaction_id=transaction_id, state=_state(state), error=item_error(outcome))
        return
    result = results.add(
        transaction_id=transaction_id or format_id(outcome.transaction_id), state=_state(outcome.state)
    )
    for place in outcome.released:
        fill_position(result.released.add(), place)


def transaction_result(
    outcome: PlacedOutcome | BrokerError, transaction_id: str = ""
) -> transaction_pb2.TransactionResult:
    """Outcome of one transaction."""
    response = transaction_pb2.CommitResponse()
    add_transaction_result(response.results, outcome, transaction_id)
    return response.results[0]


def _state(state: int) -> transaction_pb2.TransactionState.ValueType:
    return cast("transaction_pb2.TransactionState.ValueType", int(state))


def check(claimed: ClaimedCheck) -> transaction_pb2.TransactionCheck:
    """A check for a producer."""
    return transaction_pb2.TransactionCheck(
        transaction_id=format_id(claimed.transaction_id),
        check_number=claimed.check_number,
        max_checks=claimed.max_checks,
        messages=halves_out(claimed.transaction_id, claimed.halves),
        prepared_at=timestamp(claimed.prepared_at),
    )


def transaction(detail: TransactionDetail, released: Sequence[LogPosition]) -> transaction_pb2.Transaction:
    """All that is known of a transaction."""
    summary = detail.summary
    result = transaction_pb2.Transaction(
        transaction_id=format_id(summary.transaction_id),
        state=_state(summary.state),
        producer_group=summary.producer_group,
        halves=halves_out(summary.transaction_id, detail.halves),
        check_count=summary.check_count,
        prepared_at=timestamp(summary.prepared_at),
        next_check_at=None if summary.next_check_at is None else timestamp(summary.next_check_at),
        parked_at=None if summary.parked_at is None else timestamp(summary.parked_at),
    )
    for entry in detail.checks:
        result.checks.add(
            check_number=entry.check_number,
            sent_at=timestamp(entry.sent_at),
            broker_id=entry.broker_id,
            client_id=entry.client_id,
            answered_at=None if entry.answered_at is None else timestamp(entry.answered_at),
            verdict=cast("transaction_pb2.CheckVerdict.ValueType", int(entry.verdict or 0)),
            reason=entry.reason or "",
        )
    for action in detail.operator_actions:
        result.operator_actions.add(
            action=action.action,
            operator=action.operator,
            reason=action.reason,
            acted_at=timestamp(action.acted_at),
        )
    if detail.op is not None:
        result.op.CopyFrom(
            transaction_pb2.OpRecord(
                state=_state(detail.op.state),
                source=cast("transaction_pb2.VerdictSource.ValueType", int(detail.op.source)),
                decided_at=timestamp(detail.op.decided_at),
                reason=detail.op.reason or "",
                released=[position(place) for place in released],
            )
        )
    return result


def transaction_summary(summary: TransactionSummary) -> admin_pb2.TransactionSummary:
    """A summary of a transaction."""
    return admin_pb2.TransactionSummary(
        transaction_id=format_id(summary.transaction_id),
        state=_state(summary.state),
        producer_group=summary.producer_group,
        half_count=summary.half_count,
        check_count=summary.check_count,
        prepared_at=timestamp(summary.prepared_at),
        next_check_at=None if summary.next_check_at is None else timestamp(summary.next_check_at),
        parked_at=None if summary.parked_at is None else timestamp(summary.parked_at),
        decided_at=None if summary.decided_at is None else timestamp(summary.decided_at),
        source=cast("transaction_pb2.VerdictSource.ValueType", int(summary.source or 0)),
        reason=summary.reason,
    )
