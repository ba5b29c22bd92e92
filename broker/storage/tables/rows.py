"""Conversion between rows and values of the domain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from broker.domain.ids import message_id
from broker.domain.lease import Lease
from broker.domain.message import DEDUP_KEY, DELIVER_AT, LONG_TAG, PRIORITY, SHORT_TAG, LogMessage, Message
from broker.domain.place import InLog, Recalled, Scheduled
from broker.domain.trace import TRACE_PROPERTIES
from broker.errors import StoredBodyBroken
from broker.storage.tables import bodies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.domain.place import Place
    from broker.domain.topic import Compression

CONTENT = "body, size, tag, message_keys, message_group, properties"
MESSAGE_COLUMNS = f"queue_id, log_offset, transaction_id, position, {CONTENT}, born_at, stored_at"
# The body comes last: the values before it have the same shape in most rows, which the row parser exploits.
_READ_COLUMNS = (
    "log_offset, transaction_id, position, tag, message_keys, message_group, properties, born_at, stored_at,"
    f" {bodies.PACKED_SIZE}, {{body}}"
)
READ_COLUMNS = _READ_COLUMNS.format(body="body")
LEASE_COLUMNS = (
    "lease_id, group_id, queue_id, first_offset, message_count, token, attempt, available_at, owner, settled, moved,"
    " last_error, message_group"
)

NO_CHECKS, TO_CHECK, LAST_CHECK_SENT, PARKED = 0, 1, 2, 3
"""Values of half_message.check_state; at the first position NO_CHECKS means that a sink decides."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def read_columns(condition: str) -> str:
    """READ_COLUMNS whose body is omitted (NULL) where a condition is not met."""
    return _READ_COLUMNS.format(body=f"CASE WHEN {condition} THEN body END")


def content(message: Message, compression: Compression) -> tuple[Any, ...]:
    """The values of CONTENT, for a topic with this setting."""
    body = message.body
    return (bodies.pack(body, compression), len(body), *headers(message))


def headers(message: Message) -> tuple[Any, ...]:
    """The values of CONTENT behind body and size."""
    tag, properties = message.tag, message.stored_properties
    if tag is not None and len(tag) > SHORT_TAG:
        properties = {**properties, LONG_TAG: tag}
        tag = None
    return (
        tag,
        encode_keys(message.keys),
        message.message_group,
        _encode(properties) if properties else None,
    )


def encode_keys(keys: Sequence[str]) -> str | None:
    """The keys of a message as they are stored."""
    return _encode(keys) if keys else None


def half_from_row(topic: str, transaction_id: bytes, position: int, row: Sequence[Any]) -> Message:
    """A half message, or a scheduled one, from the values of CONTENT.

    Raises:
        StoredBodyBroken: it cannot be unpacked.
    """
    body, size, tag, keys, group, encoded = row
    if len(body) != size:
        try:
            body = bodies.unpack(body, size)
        except bodies.BrokenBody as error:
            place = f"topic {topic!r}, not in the log yet"
            raise StoredBodyBroken(f"{_broken(place, transaction_id, position, error)}.") from None
    properties: dict[str, str] = json.loads(encoded) if encoded else {}
    deliver_at = properties.pop(DELIVER_AT, None)
    return Message(
        topic=topic,
        body=body,
        tag=properties.pop(LONG_TAG, None) if tag is None else tag,
        keys=tuple(json.loads(keys)) if keys else (),
        message_group=group,
        priority=int(properties.pop(PRIORITY, 0)),
        deliver_at=None if deliver_at is None else int(deliver_at),
        dedup_key=properties.pop(DEDUP_KEY, None),
        properties=properties,
    )


def log_message(topic: str, queue_no: int, row: Sequence[Any]) -> LogMessage:
    """A message from the values of READ_COLUMNS; one whose body cannot be unpacked says so."""
    offset, transaction_id, position, tag, keys, group, encoded, born_at, stored_at, size, body = row
    properties, tag = decode_properties(encoded, tag)
    broken = ""
    if size is not None and body is not None:
        try:
            body = bodies.unpack(body, size)
        except bodies.BrokenBody as error:
            broken = _broken_in_log(topic, queue_no, row, error)
    return LogMessage(
        topic,
        queue_no,
        offset,
        transaction_id,
        position,
        body,
        tag,
        json.loads(keys) if keys else [],
        properties,
        group,
        born_at,
        stored_at,
        broken,
    )


def unpacked(topic: str, queue_no: int, found: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Rows of READ_COLUMNS with their bodies unpacked, up to the first one that is broken.

    Raises:
        StoredBodyBroken: the first row is.
    """
    if not any(row[-2] is not None for row in found):
        return found
    whole: list[Sequence[Any]] = []
    for row in found:
        *others, size, body = row
        try:
            whole.append(row if size is None else (*others, None, bodies.unpack(body, size)))
        except bodies.BrokenBody as error:
            if whole:
                break
            raise StoredBodyBroken(_broken_in_log(topic, queue_no, row, error)) from None
    return whole


def _broken_in_log(topic: str, queue_no: int, row: Sequence[Any], error: bodies.BrokenBody) -> str:
    place = f"topic {topic!r}, queue {queue_no}, offset {row[0]}"
    return f"{_broken(place, row[1], row[2], error)}, or read on behind it."


def _broken(place: str, transaction_id: bytes, position: int, error: bodies.BrokenBody) -> str:
    return (
        f"The stored body of message {message_id(transaction_id, position)} ({place}) cannot be unpacked: {error}."
        " Restore its row from a backup of the database"
    )


def decode_properties(encoded: str | None, tag: str | None) -> tuple[dict[str, str], str | None]:
    """Stored properties, with the broker's own ones; and the tag."""
    if not encoded:
        return {}, tag
    properties: dict[str, str] = json.loads(encoded)
    return properties, properties.pop(LONG_TAG, None) if tag is None else tag


_SCHEDULED, _RECALLED = 0, -1
"""Marker instead of a queue's id: time and topic of a scheduled, or of a recalled message follow."""


def encode_released(places: Sequence[Place]) -> str:
    """Places of messages as stored with an op record."""
    return "[" + ",".join([_encoded(place) for place in places]) + "]"


def _encoded(place: Place) -> str:
    if isinstance(place, InLog):
        return f"[{place[0]},{place[1]}]"
    if isinstance(place, Scheduled):
        return f"[{_SCHEDULED},{place.due},{place.topic_id}]"
    return f"[{_RECALLED},{place.recalled_at},{place.topic_id},{place.due}]"


def decode_released(text: str | None) -> tuple[Place, ...]:
    """Places of messages from an op record."""
    return tuple([_decoded(*numbers) for numbers in json.loads(text)]) if text else ()


def _decoded(first: int, second: int, topic_id: int = 0, due: int = 0) -> Place:
    if first == _SCHEDULED:
        return Scheduled(second, topic_id)
    return Recalled(second, topic_id, due) if first == _RECALLED else InLog(first, second)


def properties_of_content(properties: str | None) -> dict[str, str]:
    """Stored properties without what differs at each send: the trace, and a delivery time's value, as of a delay."""
    decoded: dict[str, str] = json.loads(properties) if properties else {}
    if DELIVER_AT in decoded:
        decoded[DELIVER_AT] = ""
    return {name: value for name, value in decoded.items() if name not in TRACE_PROPERTIES}


def stored_dedup_key(properties: str | None) -> str | None:
    """The dedup_key among stored properties."""
    if properties is None or DEDUP_KEY not in properties:
        return None
    found: str | None = json.loads(properties).get(DEDUP_KEY)
    return found


def encode_bits(bits: int, count: int) -> bytes | None:
    """A bitmap as stored."""
    return bits.to_bytes((count + 7) // 8, "little") if bits else None


def lease_from_row(row: Sequence[Any]) -> Lease:
    """A lease from the values of LEASE_COLUMNS."""
    (
        lease_id,
        group_id,
        queue_id,
        first,
        count,
        token,
        attempt,
        available_at,
        owner,
        settled,
        moved,
        last_error,
        message_group,
    ) = row
    return Lease(
        lease_id=lease_id,
        group_id=group_id,
        queue_id=queue_id,
        first=first,
        count=count,
        token=token,
        attempt=attempt,
        available_at=available_at,
        owner=owner,
        settled=int.from_bytes(settled or b"", "little"),
        moved=int.from_bytes(moved or b"", "little"),
        last_error=last_error,
        message_group=message_group,
    )
