"""Conversion of messages."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broker.domain.dead_letter import origin_of
from broker.domain.lease import Receipt
from broker.domain.limits import RESERVED_PROPERTY_PREFIX
from broker.domain.message import BORN_HOST, DELIVER_AT, PRIORITY, ROCKETMQ_ID, TRACE_CONTEXT, Message
from broker.errors import InvalidArgument
from broker.rocketmq.codes import BadRequest
from broker.rocketmq.ids import own_id, rocketmq_id
from broker.rocketmq.names import name_of, resource_of
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.rocketmq.reserved import RESERVED_NAMES
from broker.wire.times import fill_duration, fill_timestamp, micros, micros_of_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from broker.domain.message import LogMessage
    from broker.ports.checks import ClaimedCheck
    from broker.ports.delivery import Delivered
    from broker.wire.budget import Share

Type = definition_pb2.MessageType
_MOST_AROUND_BODY, _LONGEST = 64 * 1024, 12 * 3600 * 1_000_000
_ENCODING, _DIGEST = definition_pb2.Encoding, definition_pb2.DigestType
LONGEST_NAME, LONGEST_HOST, LONGEST_TRACE = 255, 255, 1024
"""Maximum characters of the gateway's properties of a message."""


def message_in(given: Any, namespace: str, max_body: int, share: Share) -> tuple[bytes, Message]:
    """A client's message, with halfmq's id; compressed bodies are decompressed, so that all consumers can read them.

    Their decompressed size is taken from the `share`.

    Raises:
        InvalidArgument: it is invalid.
        Overloaded: its body exceeds the budget.
    """
    system = given.system_properties
    if not system.message_id.strip():
        raise BadRequest("A message needs an id; the client makes it.", Code.ILLEGAL_MESSAGE_ID, "message_id")
    if len(system.message_id) > LONGEST_NAME:
        raise BadRequest(
            f"An id of {len(system.message_id)} characters; {LONGEST_NAME} are allowed.",
            Code.ILLEGAL_MESSAGE_ID,
            "message_id",
        )
    if system.priority < 0:
        raise InvalidArgument("A priority is 0 or more.", field="priority")
    reserved = RESERVED_NAMES & given.user_properties.keys() if given.user_properties else ()
    if reserved:
        raise BadRequest(
            f"The property {min(reserved)!r} is RocketMQ's own; choose another name.",
            Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "user_properties",
        )
    own, exact = own_id(system.message_id)
    notes = {} if exact else {ROCKETMQ_ID: system.message_id}
    if system.born_host:
        notes[BORN_HOST] = system.born_host[:LONGEST_HOST]
    if len(system.trace_context) > LONGEST_TRACE:
        raise BadRequest(
            f"A trace context of {len(system.trace_context)} characters; {LONGEST_TRACE} are allowed.",
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            "trace_context",
        )
    if system.trace_context:
        notes[TRACE_CONTEXT] = system.trace_context
    if system.message_type == Type.PRIORITY and system.HasField("priority") and not system.priority:
        notes[PRIORITY] = "0"  # Node's client treats that as no priority, but does not set the type then.
    # Some clients send an empty text for none.
    message = Message(
        name_of(given.topic, namespace),
        _body_in(given, max_body, share),
        system.tag or None,
        tuple(key for key in system.keys if key),
        dict(given.user_properties),
        system.message_group or None,
        system.priority,
        notes=notes or None,
    )
    if system.HasField("delivery_timestamp"):
        message.deliver_at = micros_of_time(system.delivery_timestamp, "delivery_timestamp")
    return own, message


def _body_in(given: Any, max_body: int, share: Share) -> bytes:
    body: bytes = given.body
    if given.system_properties.body_encoding != _ENCODING.GZIP or not body:
        return body
    # Clients use either compression; one byte over the limit is enough to refuse it.
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacking.decompress(body, max_body + 1)
    except zlib.error as error:
        raise BadRequest(f"The body cannot be unpacked: {error}.", Code.MESSAGE_CORRUPTED, "body") from None
    if len(unpacked) <= max_body and (not unpacking.eof or unpacking.unused_data):
        raise BadRequest(
            "The body cannot be unpacked: its end is missing, or something stands behind it.",
            Code.MESSAGE_CORRUPTED,
            "body",
        )
    share.grow(len(unpacked))
    return unpacked


def recovery_delay(given: Any) -> int:
    """Microseconds before the first check of a transaction; 0 if unset."""
    system = given.system_properties
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    return micros(system.orphaned_transaction_recovery_duration, "orphaned_transaction_recovery_duration")


def delivered(parts: Sequence[Delivered], namespace: str, invisible: int, host: str) -> Iterator[Any]:
    """The messages of some leases for a consumer; `invisible` in microseconds."""
    for part in parts:
        attempt = part.attempt
        for message in part.messages:
            result = log_message(message, namespace, host)
            system = result.system_properties
            system.receipt_handle = Receipt(part.lease_id, part.token, message.offset).handle
            system.delivery_attempt = attempt
            fill_duration(system.invisible_duration, invisible)
            yield result
            if part.ordered:
                # Only the first one was tried before, if any.
                attempt = 1


def larger_than(most: int, part: Delivered, message: LogMessage, namespace: str, host: str) -> bool:
    """Whether the answer with a message of a lease is larger than so many bytes."""
    if len(message.body) + _MOST_AROUND_BODY <= most:
        return False
    (alone,) = delivered([replace(part, messages=[message])], namespace, _LONGEST, host)
    return bool(service_pb2.ReceiveMessageResponse(message=alone).ByteSize() > most)


def log_message(message: LogMessage, namespace: str, host: str) -> Any:
    """A message of the log."""
    result = _message(message.topic, message.body, message.properties, namespace)
    system = result.system_properties
    system.message_id = message.properties.get(ROCKETMQ_ID) or rocketmq_id(message.transaction_id, message.position)
    if message.tag:
        system.tag = message.tag
    system.keys.extend(message.keys)
    if message.message_group:
        system.message_group = message.message_group
    system.message_type = _type_of(message.message_group, message.properties)
    system.queue_id = message.queue_no
    system.queue_offset = message.offset
    system.store_host = host
    fill_timestamp(system.born_timestamp, message.born_at)
    fill_timestamp(system.store_timestamp, message.stored_at)
    if system.HasField("dead_letter_queue"):
        system.dead_letter_queue.message_id = system.message_id
    return result


def half_message(check: ClaimedCheck, namespace: str) -> Any:
    """The first half message of a transaction, for a check."""
    half = check.halves[0]
    result = _message(half.topic, half.body, half.stored_properties, namespace)
    system = result.system_properties
    system.message_id = half.properties.get(ROCKETMQ_ID) or rocketmq_id(check.transaction_id)
    if half.tag:
        system.tag = half.tag
    system.keys.extend(half.keys)
    if half.message_group:
        system.message_group = half.message_group
    system.message_type = Type.TRANSACTION
    system.delivery_attempt = 1
    fill_timestamp(system.born_timestamp, check.prepared_at)
    fill_timestamp(system.store_timestamp, check.prepared_at)
    return result


def _message(topic: str, body: bytes, properties: Mapping[str, str], namespace: str) -> Any:
    result = definition_pb2.Message(topic=resource_of(topic, namespace), body=body)
    system = result.system_properties
    system.body_encoding = _ENCODING.IDENTITY
    # The only digest whose form is the same in all clients.
    system.body_digest.type = _DIGEST.MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    if not properties:
        return result
    for name, value in properties.items():
        if not name.startswith(RESERVED_PROPERTY_PREFIX):
            result.user_properties[name] = value
        elif name == BORN_HOST:
            system.born_host = value
        elif name == TRACE_CONTEXT:
            system.trace_context = value
        elif name == PRIORITY:
            system.priority = int(value)
        elif name == DELIVER_AT:
            fill_timestamp(system.delivery_timestamp, int(value))
        elif name != ROCKETMQ_ID:
            # A dead letter's origin and the like: useful to applications, too.
            result.user_properties[name] = value
    origin = origin_of(properties)
    if origin is not None:
        system.dead_letter_queue.topic = resource_of(origin.topic, namespace).name
    return result


def _type_of(message_group: str | None, properties: Mapping[str, str]) -> int:
    if message_group:
        return int(Type.FIFO)
    if DELIVER_AT in properties:
        return int(Type.DELAY)
    return int(Type.PRIORITY if PRIORITY in properties else Type.NORMAL)
