"""Between the wire and the domain. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from google.protobuf.timestamp_pb2 import Timestamp

from broker.api.status import item_error
from broker.domain.ids import format_id, message_id, parse_id
from broker.domain.message import LogPosition, Message
from broker.errors import BrokerError, InvalidArgument, VerdictConflict
from broker.services.transactions import HalfTransaction, OrdinaryMessage, PlacedOutcome
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer as RepeatedCompositeContainer

    from broker.domain.message import LogMessage
    from broker.domain.topic import ConsumerGroup, QueueState, Topic
    from broker.services.delivery import Settled
    from broker.services.ports import ClaimedCheck, Delivered, TransactionDetail, TransactionSummary

SECOND = 1_000_000


def timestamp(micros: int) -> Timestamp:
    """Microseconds as a Timestamp."""
    return Timestamp(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


def micros(duration: Duration, field: str) -> int:
    """A Duration in whole microseconds, rounded up.

    Raises:
        InvalidArgument: it is negative.
    """
    if duration.seconds < 0 or duration.nanos < 0:
        raise InvalidArgument("A duration cannot be negative.", field=field)
    # Less than a microsecond must not become none at all.
    return duration.seconds * SECOND - (-duration.nanos // 1000)


def message_in(message: message_pb2.Message) -> Message:
    """A message as a producer sent it."""
    return Message(
        message.topic,
        message.body or message.text.encode(),
        message.tag or None,
        tuple(message.keys) if message.keys else (),
        dict(message.properties) if message.properties else {},
        message.message_group or None,
    )


def halves_out(transaction_id: bytes, halves: Sequence[Message]) -> list[message_pb2.Message]:
    """The half messages of a transaction on their way back to a producer or an operator."""
    return [_half_out(message_id(transaction_id, position), half) for position, half in enumerate(halves)]


def _half_out(own_id: str, message: Message) -> message_pb2.Message:
    return message_pb2.Message(
        message_id=own_id,
        topic=message.topic,
        body=message.body,
        tag=message.tag or "",
        keys=message.keys,
        properties=message.properties,
        message_group=message.message_group or "",
    )


def half_transaction(item: transaction_pb2.HalfTransaction) -> HalfTransaction | BrokerError:
    """An item of Prepare, or why it cannot be one."""
    try:
        transaction_id = parse_id(item.transaction_id) if item.transaction_id else None
        for index, message in enumerate(item.messages):
            if message.message_id:
                raise InvalidArgument(
                    "A half message is named by its transaction; leave message_id empty.",
                    field=f"messages[{index}].message_id",
                )
        delay = micros(item.first_check_delay, "first_check_delay") if item.HasField("first_check_delay") else 0
    except InvalidArgument as error:
        return error
    return HalfTransaction(transaction_id, [message_in(m) for m in item.messages], item.first_position, delay)


def ordinary_message(message: message_pb2.Message) -> OrdinaryMessage | BrokerError:
    """An item of Send, or why it cannot be one."""
    try:
        own_id = parse_id(message.message_id, "message_id") if message.message_id else None
    except InvalidArgument as error:
        return error
    return OrdinaryMessage(own_id, message_in(message))


def position(place: LogPosition) -> message_pb2.LogPosition:
    """A place in the log."""
    return message_pb2.LogPosition(
        topic=place.topic, queue=place.queue_no, offset=place.offset, message_id=place.message_id
    )


def add_transaction_result(
    results: RepeatedCompositeContainer[transaction_pb2.TransactionResult],
    outcome: PlacedOutcome | BrokerError,
    transaction_id: str = "",
) -> None:
    """Adds what became of one transaction to an answer; in place, because building it apart copies it."""
    if isinstance(outcome, BrokerError):
        state = outcome.state if isinstance(outcome, VerdictConflict) else 0
        results.add(transaction_id=transaction_id, state=_state(state), error=item_error(outcome))
        return
    result = results.add(
        transaction_id=transaction_id or format_id(outcome.transaction_id), state=_state(outcome.state)
    )
    for place in outcome.released:
        result.released.add(topic=place.topic, queue=place.queue_no, offset=place.offset, message_id=place.message_id)


def transaction_result(
    outcome: PlacedOutcome | BrokerError, transaction_id: str = ""
) -> transaction_pb2.TransactionResult:
    """What became of one transaction."""
    response = transaction_pb2.CommitResponse()
    add_transaction_result(response.results, outcome, transaction_id)
    return response.results[0]


def _state(state: int) -> transaction_pb2.TransactionState.ValueType:
    return cast("transaction_pb2.TransactionState.ValueType", int(state))


def fill_log_message(target: message_pb2.LogMessage, message: LogMessage) -> None:
    """Writes a message of the log into an answer; in place, because building it apart copies the body."""
    target.topic = message.topic
    target.queue = message.queue_no
    target.offset = message.offset
    target.body = message.body
    if message.tag:
        target.tag = message.tag
    if message.keys:
        target.keys.extend(message.keys)
    if message.properties:
        target.properties.update(message.properties)
    if message.message_group:
        target.message_group = message.message_group
    target.transaction_id = own_id = format_id(message.transaction_id)
    target.message_id = f"{own_id}.{message.position}" if message.position else own_id
    target.born_at.seconds, rest = divmod(message.born_at, SECOND)
    target.born_at.nanos = rest * 1000
    target.stored_at.seconds, rest = divmod(message.stored_at, SECOND)
    target.stored_at.nanos = rest * 1000


def add_deliveries(target: RepeatedCompositeContainer[consumer_pb2.Delivery], part: Delivered) -> None:
    """Adds the messages of one lease to an answer."""
    prefix = f"{part.lease_id:x}.{part.token:x}."
    seconds, rest = divmod(part.expires_at, SECOND)
    for message in part.messages:
        delivery = target.add(receipt_handle=f"{prefix}{message.offset:x}", attempt=part.attempt)
        delivery.lease_expires_at.seconds = seconds
        delivery.lease_expires_at.nanos = rest * 1000
        if part.last_error:
            delivery.last_error = part.last_error
        fill_log_message(delivery.message, message)


def add_receipt_results(
    results: RepeatedCompositeContainer[consumer_pb2.ReceiptResult],
    handles: Sequence[str],
    outcomes: Sequence[Settled | BrokerError],
) -> None:
    """Adds what became of receipt handles to an answer."""
    for handle, outcome in zip(handles, outcomes, strict=True):
        result = results.add(receipt_handle=handle)
        if isinstance(outcome, BrokerError):
            result.error.CopyFrom(item_error(outcome))
            continue
        if outcome.expires_at is not None:
            result.lease_expires_at.CopyFrom(timestamp(outcome.expires_at))
        if outcome.dead_letter is not None:
            result.dead_letter.CopyFrom(position(outcome.dead_letter))


def check(claimed: ClaimedCheck) -> transaction_pb2.TransactionCheck:
    """A question to a producer."""
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
    """A transaction in short."""
    return admin_pb2.TransactionSummary(
        transaction_id=format_id(summary.transaction_id),
        state=_state(summary.state),
        producer_group=summary.producer_group,
        half_count=summary.half_count,
        check_count=summary.check_count,
        prepared_at=timestamp(summary.prepared_at),
        next_check_at=None if summary.next_check_at is None else timestamp(summary.next_check_at),
        parked_at=None if summary.parked_at is None else timestamp(summary.parked_at),
    )


def topic(found: Topic) -> admin_pb2.Topic:
    """A topic's settings."""
    result = admin_pb2.Topic(name=found.name, queue_count=found.queue_count, created_at=timestamp(found.created_at))
    result.retention.FromMicroseconds(found.retention)
    return result


def group(found: ConsumerGroup) -> admin_pb2.ConsumerGroup:
    """A consumer group's settings."""
    return admin_pb2.ConsumerGroup(
        name=found.name, max_attempts=found.max_attempts, created_at=timestamp(found.created_at)
    )


def group_progress(state: QueueState) -> admin_pb2.GroupProgress:
    """How far a group has come in a queue."""
    return admin_pb2.GroupProgress(
        topic=state.topic,
        queue=state.queue_no,
        committed_offset=state.committed_offset,
        next_offset=state.next_offset,
        max_offset=state.max_offset,
        in_flight=state.in_flight,
        lag=state.lag,
    )
