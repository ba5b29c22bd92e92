"""Names in an expression: properties of the message, and system fields.

A name alone is a property, exactly as written. `TAGS` is the tag, as in RocketMQ. System fields are qualified with
`halfmq`. The broker's own properties begin with "halfmq.", so they are also reached as halfmq."origin-topic".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from broker.domain.filters.fault import Fault, shorten
from broker.domain.ids import message_id
from broker.domain.limits import RESERVED_PROPERTY_PREFIX

if TYPE_CHECKING:
    from broker.domain.filters.subject import Number, Reader

QUALIFIER = "halfmq"
TAGS = "TAGS"


class Kind(Enum):
    """The type of a value, as far as known at compile time. The values are used in error texts."""

    PROPERTY = "a property"
    """Text that is read as a number, or as true or false, where it is compared with one."""
    TEXT = "a text"
    NUMBER = "a number"
    BOOLEAN = "TRUE or FALSE"
    NULL = "NULL"


@dataclass(frozen=True, slots=True)
class Value:
    """A part of an expression with a value.

    Attributes:
        at: where it begins, as an index into the expression.
        literal: the value itself when it is the same for all messages. None otherwise, and for NULL.
    """

    kind: Kind
    at: int
    read: Reader
    literal: str | Number | bool | None = None


class NamePart(NamedTuple):
    """One of the parts separated by dots."""

    text: str
    quoted: bool


_SYSTEM: dict[str, tuple[Kind, Reader]] = {
    "topic": (Kind.TEXT, lambda subject: subject.topic),
    "queue": (Kind.NUMBER, lambda subject: subject.queue_no),
    "offset": (Kind.NUMBER, lambda subject: subject.offset),
    "tag": (Kind.TEXT, lambda subject: subject.tag),
    "keys": (Kind.TEXT, lambda subject: " ".join(subject.keys) if subject.keys else None),
    "message_group": (Kind.TEXT, lambda subject: subject.message_group),
    "priority": (Kind.NUMBER, lambda subject: subject.priority),
    "size": (Kind.NUMBER, lambda subject: subject.size),
    # Milliseconds, as RocketMQ's.
    "born_at": (Kind.NUMBER, lambda subject: subject.born_at // 1000),
    "stored_at": (Kind.NUMBER, lambda subject: subject.stored_at // 1000),
    "message_id": (Kind.TEXT, lambda subject: message_id(subject.transaction_id, subject.position)),
}
SYSTEM_FIELDS = tuple(f"{QUALIFIER}.{name}" for name in _SYSTEM)


def field_value(parts: list[NamePart], at: int) -> Value:
    """The value of a name.

    Raises:
        Fault: it has a qualifier, and there is no such system field. `at` is where the name stands.
    """
    *qualifiers, (name, quoted) = parts
    if not qualifiers:
        if name == TAGS:
            return Value(Kind.TEXT, at, _SYSTEM["tag"][1])
        return _property(name, at)
    if [part.text for part in qualifiers] == [QUALIFIER]:
        if name in _SYSTEM:
            return Value(_SYSTEM[name][0], at, _SYSTEM[name][1])
        if quoted:
            return _property(RESERVED_PROPERTY_PREFIX + name, at)
    written = shorten(".".join(part.text for part in parts))
    raise Fault(
        at,
        f"there is no system field {written!r}, only {', '.join(SYSTEM_FIELDS)}; a property with a dot in its name"
        f' needs quotes, like "order.id" or {QUALIFIER}."origin-topic"',
    )


def _property(name: str, at: int) -> Value:
    return Value(Kind.PROPERTY, at, lambda subject: subject.properties.get(name))
