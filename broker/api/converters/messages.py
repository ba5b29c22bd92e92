"""Messages and their positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.domain.ids import format_id, message_id, parse_id
from broker.domain.message import DEDUP_KEY, DELIVER_AT, PRIORITY, LogPosition, Message
from broker.errors import BrokerError, InvalidArgument
from broker.services.producing.sending import OrdinaryMessage
from broker.wire.times import fill_timestamp, micros, micros_of_time, timestamp
from halfmq.v1 import message_pb2, transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.message import LogMessage
    from broker.domain.transaction import TransactionState


def message_in(message: message_pb2.Message) -> Message:
    """A message as a producer sent it."""
    result = Message(
        message.topic,
        message.body or message.text.encode(),
        message.tag or None,
        tuple(message.keys) if message.keys else (),
        dict(message.properties) if message.properties else {},
        message.message_group or None,
        message.priority,
        dedup_key=message.dedup_key or None,
    )
    when = message.WhichOneof("delivery")
    if when == "deliver_at":
        result.deliver_at = micros_of_time(message.deliver_at, "deliver_at")
    elif when == "delay":
        result.delay = micros(message.delay, "delay")
    return result


def state(of_transaction: TransactionState) -> transaction_pb2.TransactionState.ValueType:
    """State of a transaction."""
    return cast("transaction_pb2.TransactionState.ValueType", int(of_transaction))


def halves_out(transaction_id: bytes, halves: Sequence[Message]) -> list[message_pb2.Message]:
    """The half messages of a transaction, for a producer or an operator."""
    return [half_out(message_id(transaction_id, position), half) for position, half in enumerate(halves)]


def half_out(own_id: str, message: Message) -> message_pb2.Message:
    """A message without a verdict or a scheduled one, as its producer wrote it."""
    return message_pb2.Message(
        message_id=own_id,
        topic=message.topic,
        body=message.body,
        tag=message.tag or "",
        keys=message.keys,
        properties=message.properties,
        message_group=message.message_group or "",
        priority=message.priority,
        deliver_at=None if message.deliver_at is None else timestamp(message.deliver_at),
        dedup_key=message.dedup_key or "",
    )


def ordinary_message(message: message_pb2.Message) -> OrdinaryMessage | BrokerError:
    """An item of Send, or its error."""
    try:
        own_id = parse_id(message.message_id, "message_id", optional=True) if message.message_id else None
        return OrdinaryMessage(own_id, message_in(message))
    except InvalidArgument as error:
        return error


def position(place: LogPosition) -> message_pb2.LogPosition:
    """A position in the log."""
    result = message_pb2.LogPosition()
    fill_position(result, place)
    return result


def fill_position(target: message_pb2.LogPosition, place: LogPosition) -> None:
    """Writes a position into an answer; in place, because building it separately copies it."""
    if place.topic:
        target.topic = place.topic
    target.message_id = place.message_id
    if place.scheduled_at is not None:
        target.scheduled_at.CopyFrom(timestamp(place.scheduled_at))
    elif place.recalled_at is not None:
        target.recalled_at.CopyFrom(timestamp(place.recalled_at))
    else:
        target.queue = place.queue_no
        target.offset = place.offset


def fill_log_message(target: message_pb2.LogMessage, message: LogMessage) -> None:
    """Writes a message of the log into an answer; in place, because building it separately copies the body."""
    target.topic = message.topic
    target.queue = message.queue_no
    target.offset = message.offset
    target.body = message.body
    fill_rest(target, message)
    fill_timestamp(target.born_at, message.born_at)
    fill_timestamp(target.stored_at, message.stored_at)


def fill_rest(target: message_pb2.LogMessage, message: LogMessage) -> None:
    """Writes a message's fields other than position, body and times."""
    if message.tag:
        target.tag = message.tag
    if message.keys:
        target.keys.extend(message.keys)
    if message.properties:
        _fill_properties(target, message.properties)
    if message.message_group:
        target.message_group = message.message_group
    target.transaction_id = own_id = format_id(message.transaction_id)
    target.message_id = f"{own_id}.{message.position}" if message.position else own_id


def _fill_properties(target: message_pb2.LogMessage, properties: dict[str, str]) -> None:
    """Writes properties, and the broker's own ones into separate fields."""
    for name, value in properties.items():
        if name == PRIORITY:
            target.priority = int(value)
        elif name == DELIVER_AT:
            target.deliver_at.CopyFrom(timestamp(int(value)))
        elif name == DEDUP_KEY:
            target.dedup_key = value
        else:
            target.properties[name] = value
